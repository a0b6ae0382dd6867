"""``LaneVectorEnv``: gymnasium's vector environment, whose sub-environments live in lanes.

        reset / step / call             reset_async, step_async, call_async          send
               |                                     |                                 |
               |                            Pending (a thread)                Flights (a thread for
               v                                     v                         each home)   |
    +--------------------------------------- Fleet <------------------------------------------+
    |  which sub-environment is stepped, and which begins its next episode                    |
    +-----------------------------------------------------------------------------------------+
               |                                     |
          EnvEngine: lanes with many sub-environments each, journals, replays
               |
          results in order -> Batches -> observations, rewards, terminations, truncations, infos

What differs from gymnasium's ``AsyncVectorEnv``: several sub-environments share a worker; one that is killed is started
again and its sub-environments are rebuilt from their journals; a call whose ``*_wait`` timed out is still under way and
gives its own result when waited for again; an error leaves everything usable; no sub-environment is built only to look
at its spaces; some may be stepped while others are not.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from gymnasium import Env, Space
from gymnasium.vector import AutoresetMode

from ragen.parallel import LaneStats
from ragen.parallel.settings import OnEnvFailure
from ragen.vector import arguments, attributes, ending, spaces
from ragen.vector.arguments import OptionsSource, SeedsSource
from ragen.vector.asking import Asking
from ragen.vector.batch import Batches, Stepped
from ragen.vector.env_fn import EnvFn
from ragen.vector.fleet import Fleet
from ragen.vector.flights import Flights
from ragen.vector.infos import Infos


class LaneVectorEnv(Asking):
    """Steps sub-environments in worker processes, many in each.

    Equal to ``SyncVectorEnv`` bit for bit, for environments in which everything follows from seed, options and actions.

    Attributes:
        num_envs: Number of sub-environments.
        autoreset_mode: When a sub-environment whose episode has ended begins the next one.
    """

    def __init__(
        self,
        env_fns: Sequence[Callable[[], Env[Any, Any]]],
        shared_memory: bool = True,
        copy: bool = True,
        context: str | None = None,
        daemon: bool = True,
        worker: None = None,
        observation_mode: str | tuple[Space[Any], Space[Any]] = "same",
        autoreset_mode: str | AutoresetMode = AutoresetMode.NEXT_STEP,
        max_concurrency: int | None = None,
        *,
        workers: int | str | None = None,
        backend: str = "process",
        step_timeout: float = 60.0,
        reset_timeout: float = 120.0,
        startup_timeout: float = 60.0,
        on_env_failure: OnEnvFailure = "raise",
        max_restarts: int = 3,
        autoreset_options: OptionsSource = None,
        autoreset_seeds: SeedsSource = None,
        uses_global_rng: bool = False,
        old_api: bool = False,
        overlap_waits: bool = False,
    ) -> None:
        """Start workers, build the sub-environments there, and learn their spaces.

        Args:
            env_fns: Functions that build the sub-environments.
            shared_memory: Whether large observations may come through memory that workers share; refuses spaces whose
                observations have no fixed size.
            copy: Whether each step gives an array of observations of its own.
            context: How workers start: ``"forkserver"`` (also for None and ``"fork"``) or ``"spawn"``.
            daemon: Taken for compatibility; workers always end with this process, and may have processes of their own.
            worker: Refused unless None.
            observation_mode: ``"same"``, ``"different"``, or a pair of the observation space and the single one.
            autoreset_mode: When a sub-environment whose episode has ended begins the next one.
            max_concurrency: Most sub-environments at work at the same time.
            workers: Most workers; None for the number of processors (8 at most), 0 for none, ``"auto"`` for lanes where
                they were measured to pay.
            backend: Kind of workers, ``"process"`` or ``"executor"``.
            step_timeout: Seconds for one step of one sub-environment, with the reset that may belong to it.
            reset_timeout: Seconds for one explicit reset of one sub-environment.
            startup_timeout: Seconds for one worker to start.
            on_env_failure: ``"raise"`` the sub-environment's exception, ``"truncate"`` its episode, or ``"fallback"``:
                once more on a rebuilt one, and then truncate. Killed workers are replaced in any case.
            max_restarts: How often a sub-environment's worker may be killed, perhaps from outside, at one step.
            autoreset_options: Options of autoresets: one mapping for all, one for each, or a function of index and
                episode (1 is the one that the last explicit reset began).
            autoreset_seeds: Seeds of autoresets likewise; None goes on with the generators.
            uses_global_rng: Whether sub-environments draw from ``random`` or ``numpy.random``, whose states are then
                kept apart for each; costs some microseconds a step.
            old_api: Whether sub-environments have the interface of ``gym`` before 0.26: ``reset`` gives an observation
                alone, ``step`` four values. Their spaces may be ``gym``'s; options are given as far as ``reset`` takes
                them.
            overlap_waits: Whether those of one worker wait at the same time, each in a thread of its own, where a
                step waits for a network or another process rather than computes. They may share nothing that changes.

        Raises:
            ValueError: An argument cannot work (``overlap_waits`` beside ``uses_global_rng``, for one), or shared
                memory does not fit the space.
            RuntimeError: Sub-environments differ in their spaces.
            Exception: What building a sub-environment raised.
        """
        settings = arguments.settings_from(
            context,
            worker,
            max_concurrency,
            workers,
            backend=backend,
            step_timeout=step_timeout,
            reset_timeout=reset_timeout,
            startup_timeout=startup_timeout,
            on_env_failure=on_env_failure,
            max_restarts=max_restarts,
        )
        self.env_fns, self.num_envs = env_fns, len(env_fns)
        self.shared_memory, self.copy, self.context, self.daemon = shared_memory, copy, context, daemon
        self.worker, self.observation_mode, self.max_concurrency = worker, observation_mode, max_concurrency
        self.autoreset_mode = AutoresetMode(autoreset_mode)
        next_options = arguments.options_source(autoreset_options, self.num_envs)
        next_seed = arguments.seeds_source(autoreset_seeds, self.num_envs)
        how = old_api, overlap_waits
        specs = [attributes.spec_of(EnvFn(fn, uses_global_rng), index, *how) for index, fn in enumerate(env_fns)]
        self._fleet = Fleet(specs, settings, self.autoreset_mode, next_options, next_seed)
        self._flights = Flights(self._fleet.step)
        try:
            self._learn_spaces()
        except BaseException:
            self._fleet.engine.close()
            self._fleet.forget()
            self.closed = True
            raise
        self._batches = Batches(self.single_observation_space, self.num_envs, copy)

    def _learn_spaces(self) -> None:
        engine, mode = self._fleet.engine, self.observation_mode
        described = attributes.descriptions(engine, None if mode == "different" else 1)
        found = spaces.batched(mode, described + described[:1] * (self.num_envs - len(described)))
        self.observation_space, self.single_observation_space, self.action_space, self.single_action_space = found
        self.metadata = {**attributes.metadata(described[0]), "autoreset_mode": self.autoreset_mode}
        self.render_mode = described[0].render_mode
        if self.shared_memory and engine.settings.backend != "ray":  # whose lanes are on other machines
            spaces.refuse_shared_memory(self.single_observation_space)
            self._fleet.slab = spaces.slab_for(self.single_observation_space, self.num_envs)
        shared = spaces.dumped((self.single_observation_space, self.single_action_space))
        spaces.raise_if_differing(mode, found, attributes.fits(engine, mode == "same", shared))

    # Resets and steps

    def reset(self, *, seed: Any = None, options: Any = None) -> tuple[Any, Infos]:
        """Begin new episodes.

        Args:
            seed: ``seed + i`` for sub-environment ``i``, a list of seeds, or None to go on with their generators.
            options: What every ``reset`` is given, or a list with one mapping or None for each. A boolean array under
                ``"reset_mask"`` says which are to be reset; the mapping is left as it is.

        Returns:
            Observations of all sub-environments, and the infos of those that were reset.
        """
        return self._now("reset_async", self._resetting(seed, options))

    def reset_async(self, seed: Any = None, options: Any = None) -> None:
        """Begin a :meth:`reset`; :meth:`reset_wait` gives its result."""
        self._begin("reset", self._resetting(seed, options))

    def reset_wait(self, timeout: float | None = None) -> tuple[Any, Infos]:
        """The result of :meth:`reset_async`; after a ``TimeoutError`` it may be called again for the same one."""
        return self._wait("reset", timeout)

    def step(self, actions: Any) -> Stepped:
        """Step all sub-environments; gives observations, rewards, terminations, truncations and infos.

        Raises:
            ValueError: Not as many actions as sub-environments; none was stepped.
        """
        return self._now("step_async", self._stepping(actions))

    def step_async(self, actions: Any) -> None:
        """Begin a :meth:`step`; :meth:`step_wait` gives its result."""
        self._begin("step", self._stepping(actions))

    def step_wait(self, timeout: float | None = None) -> Stepped:
        """The result of :meth:`step_async`; after a ``TimeoutError`` it may be called again for the same one."""
        return self._wait("step", timeout)

    def _resetting(self, seed: Any, options: Any) -> Callable[[], Any]:
        seeds = arguments.seeds_from(seed, self.num_envs)
        ids, given = arguments.options_from(options, self.num_envs)

        def work() -> Any:
            shown = self._fleet.reset(ids, [seeds[index] for index in ids], [given[index] for index in ids])
            return self._batches.of_reset(self._fleet.last, ids, shown)

        return work

    def _stepping(self, actions: Any) -> Callable[[], Any]:
        each = attributes.actions_of(self.action_space, actions, self.num_envs)
        return lambda: self._batches.of_step(self._fleet.step(range(self.num_envs), each))

    # Some of them

    def step_some(self, ids: Sequence[int], actions: Any) -> Stepped:
        """Step some sub-environments; the others stay as they are.

        Args:
            ids: Their indices.
            actions: An action for each of them.

        Returns:
            Like :meth:`step`, with a row for each of ``ids`` in that order; ``infos["env_id"]`` repeats them.
        """
        some = self._free(arguments.ids_from(ids, self.num_envs))
        results = self._fleet.step(some, attributes.actions_of(self.action_space, actions, len(some)))
        return self._with_ids(some, self._batches.of_step(results))

    def send(self, actions: Any, ids: Sequence[int] | None = None) -> None:
        """Begin to step some sub-environments, all by default, and do not wait; :meth:`recv` gives results.

        May be called again, with others, before anything was received.
        """
        some = self._free(arguments.ids_from(range(self.num_envs) if ids is None else ids, self.num_envs))
        each = attributes.actions_of(self.action_space, actions, len(some))
        self._flights.send(some, each, [self._fleet.engine.home(index) for index in some])

    def recv(self, min_envs: int = 1, *, in_order: bool = False, timeout: float | None = None) -> Stepped:
        """Wait for sub-environments that were sent a step.

        Args:
            min_envs: How many to wait for; all that are ready come back.
            in_order: Exactly ``min_envs``, those that were sent first: what comes back then does not depend on which
                of them were quicker.
            timeout: Seconds to wait at most.

        Returns:
            Like :meth:`step_some`.
        """
        self._assert_is_running()
        results = self._flights.receive(min_envs, in_order, timeout)
        return self._with_ids(list(results), self._batches.of_step(list(results.values())))

    @staticmethod
    def _with_ids(ids: list[int], stepped: Stepped) -> Stepped:
        stepped[4]["env_id"] = np.array(ids)
        return stepped

    # The end

    def stats(self) -> list[LaneStats]:
        """What each home has done: turns, seconds, restarts."""
        return self._fleet.engine.stats()

    def close_extras(self, timeout: float | None = None, terminate: bool = False) -> None:
        """Close the sub-environments, and the workers that nobody else uses.

        Args:
            timeout: Seconds to wait for a call that is under way; None until it is done.
            terminate: Do not wait for it: the workers that are at it are killed.
        """
        if (fleet := getattr(self, "_fleet", None)) is not None:
            try:
                ending.close(fleet.engine, self._pending, self._flights, timeout, terminate)
            finally:
                fleet.forget()

    def __del__(self) -> None:
        """Close what was forgotten."""
        if not getattr(self, "closed", True) and (fleet := getattr(self, "_fleet", None)) is not None:
            fleet.engine.close(forgotten=True)
            fleet.forget()
