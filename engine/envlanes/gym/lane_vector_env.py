"""``LaneVectorEnv``: gymnasium's vector environment, with sub-environments in workers.

        reset / step / call             reset_async, step_async, call_async          send
               |                                     |                                 |
               |                              a thread and its Future       the same for each worker
               v                                     v                                 v
    +-------------------------------------- SubEnvs <-----------------------------------------+
    |  which sub-environment is stepped, and which begins its next episode                    |
    +-----------------------------------------------------------------------------------------+
               |                                     |
          Engine: workers with many sub-environments each, journals, replays
               |
          results in order -> observations, rewards, terminations, truncations, infos

Differences from gymnasium's ``AsyncVectorEnv``: several sub-environments share a worker; a killed worker is restarted
and its sub-environments are rebuilt from their journals; a call whose ``*_wait`` timed out is still pending, and
returns its own result when waited for again; after an error everything remains usable; no sub-environment is built only
to query its spaces; a subset can be stepped.
"""

from __future__ import annotations

import logging
import multiprocessing
import operator
import pickle
import threading
import zlib
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, Future
from concurrent.futures import wait as wait_for
from contextlib import suppress
from functools import partial, update_wrapper
from types import SimpleNamespace
from typing import Any

import cloudpickle
import numpy as np
from gymnasium import Env, Space, logger
from gymnasium.error import (
    AlreadyPendingCallError,
    ClosedEnvironmentError,
    CustomSpaceError,
    NoAsyncCallError,
)
from gymnasium.spaces.utils import is_space_dtype_shape_equiv
from gymnasium.vector import AutoresetMode, VectorEnv
from gymnasium.vector.utils import (
    batch_differing_spaces,
    batch_space,
    concatenate,
    create_empty_array,
    create_shared_memory,
    iterate,
)

from envlanes import EnvFailed, EnvSet, EnvSpec, LaneStats, Settings
from envlanes.episode.game import named
from envlanes.episode.journal import Change
from envlanes.episode.values import copied
from envlanes.errors import ConfigError, EpisodeOverError, StateError
from envlanes.gym import arguments
from envlanes.gym.arguments import Options
from envlanes.gym.game import AT_END, GYM, NEVER, NOW, OWN, GymResult, GymTurn, IsMethod, Shown
from envlanes.interrupts import holds_interrupts, interrupts_come_too_late, interrupts_let_through
from envlanes.settings import OnEnvFailure, default_workers

log = logging.getLogger(__name__)

Infos = dict[str, Any]
Stepped = tuple[Any, np.ndarray, np.ndarray, np.ndarray, Infos]

# Workers are never forks of this process, whose threads may hold locks: "fork" means forks of a clean one.
CONTEXTS = {None: "forkserver", "fork": "forkserver", "forkserver": "forkserver", "spawn": "spawn"}
_ABANDONED = 5.0  # seconds to wait for a call whose workers were killed: it ends when it notices, in milliseconds


def _none(index: int, episode: int) -> None:
    """An autoreset has no options, and no seed."""


class SubEnvs(EnvSet):
    """Sub-environments in an engine by index, and when each of them begins its next episode.

    Nothing here knows of batches or spaces. Different environments may be used by several threads at the same time.

    Attributes:
        engine: The engine that hosts them.
        autoreset: When an environment whose episode has ended begins the next one.
        last: The last observation of each; None before the first.
        over: Environments whose episodes have ended: the next step begins another one, or is refused.
    """

    def __init__(
        self,
        specs: Sequence[EnvSpec],
        settings: Settings,
        autoreset: AutoresetMode,
        next_options: Callable[[int, int], Options] = _none,
        next_seed: Callable[[int, int], int | None] = _none,
    ) -> None:
        """Host these; workers that they need start now.

        Args:
            specs: The environments; their ids are their indices.
            settings: The engine's settings.
            autoreset: When ended environments start over.
            next_options: Options of an autoreset, by index and number of the episode: a reset begins number 1.
            next_seed: The seed of an autoreset likewise; None continues with the environment's generators.
        """
        self._hold(specs, settings)
        self.engine = self._engine
        self.autoreset = autoreset
        self._next_options, self._next_seed = next_options, next_seed
        count = len(specs)
        self.last: list[Any] = [None] * count
        self.over: set[int] = set()
        self._episodes = [0] * count
        # Seeds and options of the next episodes. A function is called once for each: it may draw, and a turn that is
        # played again has to begin the same episode.
        self._planned: dict[int, Any] = {}
        self._seeds: list[int | None] = [None] * count

    def reset_envs(self, seeds: Mapping[int, int | None], options: Mapping[int, Options]) -> dict[int, Shown]:
        """Begin new episodes.

        Args:
            seeds: The seed of each environment.
            options: The options of each; none by default.

        Returns:
            The observation and info of each. Of one that failed: its last observation, and the reason in its info.

        Raises:
            Exception: With ``on_env_failure="raise"``, that of an environment that failed; the others are reset.
        """
        found = self._reset(seeds, options)
        for index, seed in seeds.items():
            self._seeds[index] = self._seeds[index] if seed is None else seed
            self._episodes[index] = 1
            self._planned.pop(index, None)
        # After the bookkeeping: the environments that were reset have begun their episodes.
        if self._raises:
            values_or_raise(found)
        for index, value in found.items():
            if isinstance(value, EnvFailed):
                found[index] = Shown(self.last[index], {"env_error": value.text})
        return found

    def step_envs(self, actions: Mapping[int, Any]) -> dict[int, GymResult]:
        """Step environments, or begin the next episodes of those whose last ones are over.

        Args:
            actions: An action for each environment; ignored where an episode begins instead.

        Returns:
            A result for each. An environment that failed is truncated, and its info says why.

        Raises:
            EpisodeOverError: An episode has ended, and is not reset by itself; no environment was stepped.
            StateError: An environment was never reset; no environment was stepped.
            Exception: With ``on_env_failure="raise"``, that of an environment that failed; the others were stepped.
        """
        if self.autoreset is AutoresetMode.DISABLED and (over := self.over.intersection(actions)):
            raise EpisodeOverError(
                f"The episodes of environments {sorted(over)} are over, and with autoreset_mode DISABLED nothing "
                "resets them: call `reset` with these in `options['reset_mask']` first. No environment was stepped."
            )
        self._count_turns(len(actions))
        at_end = AT_END if self.autoreset is AutoresetMode.SAME_STEP else NEVER
        turns = {}
        for index, action in actions.items():
            is_over = index in self.over
            if is_over and self.engine.failure(index) is not None:
                continue  # it has no state that could be stepped, and begins anew below
            begins = NOW if is_over else at_end
            seed, options = self._plan(index) if begins else (None, None)
            turns[index] = named(GymTurn, (action, begins, seed, options))
        results = self.engine.play(turns)
        for index, result in results.items():
            if type(result) is EnvFailed:
                self.over.add(index)
                continue
            self.last[index] = result.observation
            if result.began is not None:
                self._next_episode(index)
            elif result.terminated or result.truncated:
                self.over.add(index)
        if len(results) < len(actions):
            for index, shown in self._reset_lost([index for index in actions if index not in turns]):
                if isinstance(shown, Shown):
                    shown = GymResult(shown.observation, 0.0, False, False, shown.info, None)
                results[index] = shown
        failed = [index for index, result in results.items() if type(result) is EnvFailed]
        if failed:  # only now, when the results of all others are kept
            if self._raises:
                values_or_raise(results)
            self._truncate(results, failed)
        return {index: results[index] for index in actions}

    def _truncate(self, results: dict[int, Any], failed: Sequence[int]) -> None:
        """Put a last turn in the place of each failure: nothing gained, cut short, with the reason in its info."""
        last = {index: self.last[index] for index in failed}  # before the reset, which replaces them
        again = dict(self._reset_lost(failed)) if self.autoreset is AutoresetMode.SAME_STEP else {}
        for index in failed:
            note, shown = {"env_error": results[index].text}, again.get(index)
            observation, info, final = last[index], note, None
            if isinstance(shown, Shown):
                observation, info, final = shown.observation, {**shown.info, **note}, Shown(last[index], note)
            results[index] = GymResult(observation, 0.0, False, True, info, None, final)

    def _plan(self, index: int) -> tuple[int | None, Options]:
        """Seed and options of the environment's next autoreset."""
        if index not in self._planned:
            episode = self._episodes[index] + 1
            self._planned[index] = self._next_seed(index, episode), self._next_options(index, episode)
        return self._planned[index]

    def _reset_lost(self, ids: Sequence[int]) -> Iterable[tuple[int, Any]]:
        """Begin new episodes of environments that have failed, with a seed: their own generators are lost."""
        seeds, options = {}, {}
        for index in ids:
            seeds[index], options[index] = self._plan(index)
            # From what is known in every run with the same failure, so that both go on alike.
            if seeds[index] is None and (last := self._seeds[index]) is not None:
                seeds[index] = zlib.crc32(f"{last} {index} {self._episodes[index]}".encode())
        return self._reset(seeds, options).items()

    def _reset(self, seeds: Mapping[int, int | None], options: Mapping[int, Options]) -> dict[int, Any]:
        found = self.engine.reset(seeds, own_options=options)
        for index, shown in found.items():
            if isinstance(shown, EnvFailed):
                self.over.add(index)
            else:
                self.last[index] = shown.observation
                self._next_episode(index)
        return found

    def _next_episode(self, index: int) -> None:
        self.over.discard(index)
        self._episodes[index] += 1
        self._planned.pop(index, None)


def values_or_raise(found: Mapping[int, Any]) -> tuple[Any, ...]:
    """The values of environments, unless one is a failure or an error of the engine's.

    Raises:
        Exception: The first such error, or the environment's own exception that caused it, with a note of the place.
    """
    for value in found.values():
        error = value.error if type(value) is EnvFailed else value
        if isinstance(error, Exception):
            own = error.__cause__  # none where its worker has died, or it was interrupted
            if not isinstance(own, Exception):
                raise error
            own.add_note(str(error))
            raise own
    return tuple(found.values())


def _builder(build: Callable[[], Any], uses_global_rng: bool) -> Any:
    """A function that builds an environment, with the names that messages show and what workers must know of it."""
    made: Any = update_wrapper(partial(build), build, updated=())
    made.preload, made.uses_global_rng = ("gymnasium",), uses_global_rng
    return made


class LaneVectorEnv(VectorEnv[Any, Any, np.ndarray]):
    """Steps sub-environments in worker processes, many in each.

    Equal to ``SyncVectorEnv`` bit for bit, for environments in which everything follows from seed, options and actions.

    Attributes:
        num_envs: Number of sub-environments.
        autoreset_mode: When a sub-environment whose episode has ended begins the next one.
        each_info: The infos of the last reset or step before they were merged, one for each row.
    """

    each_info: Sequence[Infos] = ()
    _pending: tuple[str, Future[Any]] | None = None

    def __init__(
        self,
        env_fns: Iterable[Callable[[], Env[Any, Any]]],
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
        autoreset_options: Callable[[int, int], Options] | None = None,
        autoreset_seeds: Callable[[int, int], int | None] | None = None,
        uses_global_rng: bool = False,
    ) -> None:
        """Start workers, build the sub-environments there, and query their spaces.

        Args:
            env_fns: Functions that build the sub-environments.
            shared_memory: Whether to refuse spaces whose observations have no fixed size, as gymnasium does;
                observations travel through pipes.
            copy: Whether each step returns a new array of observations.
            context: Start method of workers: ``"forkserver"`` (also for None and ``"fork"``) or ``"spawn"``.
            daemon: Accepted for compatibility; workers always end with this process, and may have child processes.
            worker: Must be None.
            observation_mode: ``"same"``, ``"different"``, or a pair of the observation space and the single one.
            autoreset_mode: When a sub-environment whose episode has ended begins the next one.
            max_concurrency: Maximum number of sub-environments at work at the same time.
            workers: Maximum number of workers; None for the number of processors (at most 8), 0 for none, ``"auto"``
                for workers only where measurements show that they pay off.
            backend: Kind of workers, ``"process"`` or ``"executor"``.
            step_timeout: Seconds for one step of one sub-environment, including its autoreset.
            reset_timeout: Seconds for one explicit reset of one sub-environment.
            startup_timeout: Seconds for one worker to start.
            on_env_failure: ``"raise"`` the sub-environment's exception, ``"truncate"`` its episode, or ``"fallback"``:
                retry once on a rebuilt one, then truncate. Killed workers are always replaced.
            max_restarts: Number of times a sub-environment's worker may be killed, perhaps externally, during one step.
            autoreset_options: A function that returns the options of an autoreset, of the sub-environment's index and
                the number of the episode that it begins (the last explicit reset began episode 1).
            autoreset_seeds: A function that returns its seed, likewise; None continues with the generators.
            uses_global_rng: Whether sub-environments draw from ``random`` or ``numpy.random``, whose states are then
                kept separate for each; costs some microseconds per step.

        Raises:
            ValueError: An argument is invalid, or shared memory does not fit the space.
            RuntimeError: Sub-environments have different spaces.
            Exception: Building a sub-environment raised it.
        """
        # Before anything is started.
        for name, given, fits, expected in (
            ("worker", worker, worker is None, "None, since a worker hosts many (did you mean 'workers'?)"),
            ("workers", workers, workers == "auto" or _is_limit(workers, 0), "at least 0, 'auto' or None"),
            ("max_concurrency", max_concurrency, _is_limit(max_concurrency, 1), "at least 1, or None"),
            ("context", context, context in CONTEXTS, f"one of {', '.join(map(repr, CONTEXTS))}"),
            ("autoreset_options", autoreset_options, callable(autoreset_options or _none), "a function, or None"),
            ("autoreset_seeds", autoreset_seeds, callable(autoreset_seeds or _none), "a function, or None"),
        ):
            if not fits:
                raise ConfigError(f"{name} = {given!r}: expected {expected}.")
        # One environment of each worker is at work at a time. "auto" has as many workers as pay.
        most = [default_workers() if workers is None else workers, max_concurrency]
        settings = Settings.of(
            use_lanes="auto" if workers == "auto" else workers != 0,
            max_workers=min([int(count) for count in most if count and count != "auto"], default=None),
            start_method=CONTEXTS[context],
            backend=backend,
            step_timeout=step_timeout,
            reset_timeout=reset_timeout,
            startup_timeout=startup_timeout,
            on_env_failure=on_env_failure,
            max_restarts=max_restarts,
        )
        if not isinstance(env_fns, Sequence):
            # Each as it is now: the closures of a generator's functions change as it goes on.
            env_fns = [cloudpickle.loads(cloudpickle.dumps(fn)) for fn in env_fns]
        self.env_fns = env_fns
        self.num_envs = len(env_fns)
        self.shared_memory, self.copy, self.observation_mode = shared_memory, copy, observation_mode
        self.autoreset_mode = AutoresetMode(autoreset_mode)
        fns = enumerate(env_fns)
        specs = [EnvSpec.of(_builder(fn, uses_global_rng), env_id=i, tag="env", game=GYM) for i, fn in fns]
        self._envs = SubEnvs(specs, settings, self.autoreset_mode, autoreset_options or _none, autoreset_seeds or _none)
        self._sent: dict[int, Future[Any]] = {}  # in the order in which they were sent
        try:
            self._learn_spaces()
        except BaseException:  # an interrupt too: nobody could close the workers later
            self.close()
            raise

    def _learn_spaces(self) -> None:
        """Take spaces and metadata from the sub-environments, and refuse those that do not fit together."""
        mode = self.observation_mode
        found = list(map(pickle.loads, self.ask(range(self.num_envs), "describe")))
        single, self.single_action_space, metadata, self.render_mode = found[0]
        self.action_space = batch_space(self.single_action_space, self.num_envs)
        fits = operator.eq if mode == "same" else is_space_dtype_shape_equiv
        if isinstance(mode, tuple) and len(mode) == 2:
            if not all(isinstance(space, Space) for space in mode):
                raise TypeError(f"Expected both elements of observation_mode to be Spaces, got {mode}")
            self.observation_space, single = mode
        elif mode == "same":
            self.observation_space = batch_space(single, self.num_envs)
        elif mode == "different":
            self.observation_space = batch_differing_spaces([each[0] for each in found])
        else:
            raise ValueError(
                "Invalid `observation_mode`, expected: 'same' or 'different' or tuple of single and batch observation "
                f"space, actual got {mode}"
            )
        self.single_observation_space = single
        self.metadata = {**metadata, "autoreset_mode": self.autoreset_mode}
        if self.shared_memory:
            try:  # it refuses what has no fixed size, in gymnasium's words; here, it allocates nothing
                create_shared_memory(single, ctx=SimpleNamespace(Array=lambda *_: None))  # type: ignore[arg-type]
            except CustomSpaceError as error:
                raise ValueError(f"shared_memory=True: {error} Or use shared_memory=False.") from error
        for position, (observation, action, *_) in enumerate(found):
            text = "the sub-environments {} spaces are not equivalent. Expected {}, and that of environment {} is {}."
            if action != self.single_action_space:
                raise RuntimeError(text.format("action", self.single_action_space, position, action))
            if not fits(observation, single):
                text += " If this is intentional, use `observation_mode='different'` instead."
                raise RuntimeError(text.format("observation", single, position, observation))
        with suppress(CustomSpaceError):  # a user's space, whose batches cannot be taken apart
            # The observation of an environment that has failed in its first reset.
            self._envs.last = [*iterate(batch_space(single, 1), create_empty_array(single, n=1))] * self.num_envs
        # Reused by each step if nothing is copied.
        self._observations: Any = create_empty_array(single, n=self.num_envs)

    # Resets and steps

    def reset(self, *, seed: Any = None, options: Any = None) -> tuple[Any, Infos]:
        """Begin new episodes.

        Args:
            seed: ``seed + i`` for sub-environment ``i``, a list of seeds, or None to continue with their generators.
            options: Options for every ``reset``, or a list with one mapping or None for each. A boolean array under
                ``"reset_mask"`` selects those to reset; the mapping is not modified.

        Returns:
            Observations of all sub-environments, and the infos of those that were reset.
        """
        return self._now("reset_async", self._resetting(seed, options))

    def reset_async(self, seed: Any = None, options: Any = None) -> None:
        """Begin a :meth:`reset`; :meth:`reset_wait` returns its result."""
        self._begin("reset", self._resetting(seed, options))

    def reset_wait(self, timeout: float | None = None) -> tuple[Any, Infos]:
        """The result of :meth:`reset_async`; after a ``TimeoutError`` it can be called again."""
        return self._wait("reset", timeout)

    def step(self, actions: Any) -> Stepped:
        """Step all sub-environments; returns observations, rewards, terminations, truncations and infos.

        Raises:
            ValueError: The number of actions differs from that of sub-environments; none was stepped.
        """
        return self._now("step_async", self._stepping(actions))

    def step_async(self, actions: Any) -> None:
        """Begin a :meth:`step`; :meth:`step_wait` returns its result."""
        self._begin("step", self._stepping(actions))

    def step_wait(self, timeout: float | None = None) -> Stepped:
        """The result of :meth:`step_async`; after a ``TimeoutError`` it can be called again."""
        return self._wait("step", timeout)

    def _resetting(self, seed: Any, options: Any) -> Callable[[], Any]:
        # Before another thread begins: errors are raised where the call is, and the caller may change its arrays.
        seeds, given = arguments.seeds_from(seed, self.num_envs), arguments.options_from(options, self.num_envs)

        def work() -> Any:
            shown = self._envs.reset_envs({index: seeds[index] for index in given}, given)
            infos = [shown[index].info if index in shown else {} for index in range(self.num_envs)]
            return self._observed(self._envs.last), self._merged(infos)

        return work

    def _stepping(self, actions: Any) -> Callable[[], Any]:
        each = self._each(actions, range(self.num_envs))
        return lambda: self._batched(self._envs.step_envs(each))

    def _each(self, actions: Any, ids: Collection[int]) -> dict[int, Any]:
        """The action of each of these sub-environments, independent of later changes to the caller's array."""
        # Copies: journals keep actions, and a rebuilt environment is given them again.
        copies = actions.copy() if isinstance(actions, np.ndarray) else copied(actions)
        each = list(iterate(self.action_space, copies))
        if len(each) != len(ids):
            raise ValueError(
                f"expected {len(ids)} actions, one for each environment, got {len(each)}; none was stepped."
            )
        return dict(zip(ids, each, strict=True))

    def _batched(self, results: Mapping[int, GymResult], is_part: bool = False) -> Stepped:
        """The results of a step as arrays, in their order; the indices of some environments are added to the infos."""
        observations, rewards, terminated, truncated, infos, _, finals, _ = zip(*results.values(), strict=True)
        if finals.count(None) < len(finals):
            # Before what a final info has: an environment's own key of this name wins, as in gymnasium.
            ends = [{"final_obs": end.observation, "final_info": end.info} if end else {} for end in finals]
            infos = tuple({**end, **info} for end, info in zip(ends, infos, strict=True))
        merged = self._merged(infos)
        if is_part:  # after the merge, which would add a mask
            merged["env_id"] = np.array(list(results))
        return (
            self._observed(observations),
            np.array(rewards, dtype=np.float64).reshape(len(results)),
            np.array(terminated, dtype=np.bool_),
            np.array(truncated, dtype=np.bool_),
            merged,
        )

    def _observed(self, shown: Sequence[Any]) -> Any:
        """Observations of single environments as one batch."""
        batch = self._observations
        if self.copy or len(shown) != self.num_envs:
            batch = create_empty_array(self.single_observation_space, n=len(shown), fn=np.empty)
        return concatenate(self.single_observation_space, shown, batch)

    def _merged(self, infos: Sequence[Infos]) -> Infos:
        """The infos of environments by gymnasium's own rules: a key of any becomes an array over all, with a mask."""
        self.each_info = infos
        if not any(infos):
            return {}
        # One of its own, since its number of environments is that of the rows.
        rows: VectorEnv[Any, Any, Any] = VectorEnv()
        rows.num_envs = len(infos)
        found: Infos = {}
        for row, info in enumerate(infos):
            found = rows._add_info(found, info, row)
        return found

    # Subsets

    @holds_interrupts
    def step_some(self, ids: Sequence[int], actions: Any) -> Stepped:
        """Step some sub-environments; the others are unchanged.

        Args:
            ids: Their indices.
            actions: One action for each of them.

        Returns:
            Like :meth:`step`, with one row for each of ``ids`` in that order, repeated in ``infos["env_id"]``.
        """
        some = arguments.ids_from(ids, self.num_envs)
        self._refuse_pending("step_some", some)
        return self._batched(self._envs.step_envs(self._each(actions, some)), is_part=True)

    @holds_interrupts
    def send(self, actions: Any, ids: Sequence[int] | None = None) -> None:
        """Begin to step some sub-environments, by default all, without waiting; :meth:`recv` returns results.

        May be called again, with others, before anything is received.
        """
        some = range(self.num_envs) if ids is None else arguments.ids_from(ids, self.num_envs)
        self._refuse_pending("send", some)
        groups: dict[str, dict[int, Any]] = {}
        for index, action in self._each(actions, some).items():
            groups.setdefault(self._envs.engine.home(index), {})[index] = action
        begun: dict[int, Future[Any]] = {}
        try:
            for home in sorted(groups, key="main".__eq__):  # main last, so that workers are at work meanwhile
                step = partial(self._envs.step_envs, groups[home])
                begun |= dict.fromkeys(groups[home], _started(step, in_thread=home != "main"))
        finally:  # an interrupt ends what main has begun; workers' steps can be received all the same
            self._sent |= {index: begun[index] for index in some if index in begun}

    @holds_interrupts
    def recv(self, min_envs: int = 1, *, in_order: bool = False) -> Stepped:
        """Wait for sub-environments that were sent a step.

        Args:
            min_envs: Number to wait for; all finished ones are returned.
            in_order: Return exactly ``min_envs``, those that were sent first, regardless of which are faster.

        Returns:
            Like :meth:`step_some`.
        """
        self._assert_is_running()
        if not 1 <= min_envs <= len(self._sent):
            raise StateError(f"`recv` asks for {min_envs} environments, but only {len(self._sent)} were sent a step.")
        wanted = list(self._sent)[: min_envs if in_order else None]
        # Steps that end together come one by one: the thread that waits is woken for each.
        while len(ready := [index for index in wanted if self._sent[index].done()]) < min_envs:
            with interrupts_let_through():
                wait_for({self._sent[index] for index in wanted if index not in ready}, return_when=FIRST_COMPLETED)
        for future in map(self._sent.__getitem__, ready):
            if (error := future.exception()) is not None:  # of its whole group; the others can be received afterwards
                self._sent = {index: each for index, each in self._sent.items() if each is not future}
                raise error
        interrupts_come_too_late()  # from here on, results are taken out: an interrupt would lose them
        return self._batched({index: self._sent.pop(index).result()[index] for index in ready}, is_part=True)

    # Attributes and methods

    def render(self) -> tuple[Any, ...]:
        """The rendering of each sub-environment."""
        return self._answers(self._envs.engine.read, range(self.num_envs), "render")

    def call(self, name: str, *args: Any, **kwargs: Any) -> tuple[Any, ...]:
        """Call a method of every sub-environment, or read an attribute; returns a tuple of the results.

        The call is part of the episode: it is repeated when a sub-environment is rebuilt.
        """
        return self.call_some(range(self.num_envs), name, *args, **kwargs)

    def call_some(self, ids: Iterable[int], name: str, *args: Any, **kwargs: Any) -> tuple[Any, ...]:
        """:meth:`call` of some sub-environments, in the order of ``ids``."""
        return self._answers(self._envs.engine.call, ids, name, *args, **kwargs)

    def call_async(self, name: str, *args: Any, **kwargs: Any) -> None:
        """Begin a :meth:`call`; :meth:`call_wait` returns its result."""
        call, ids = self._envs.engine.call, range(self.num_envs)
        self._begin("call", lambda: values_or_raise(call(ids, name, *args, **kwargs)))

    def call_wait(self, timeout: float | None = None) -> tuple[Any, ...]:
        """The result of :meth:`call_async`; after a ``TimeoutError`` it can be called again."""
        return self._wait("call", timeout)

    def get_attr(self, name: str) -> tuple[Any, ...]:
        """An attribute of every sub-environment; methods are called."""
        found = self.ask(range(self.num_envs), "read", name)
        return self.call(name) if any(type(each) is IsMethod for each in found) else found

    def ask(self, ids: Iterable[int], method: str, *arguments: Any) -> tuple[Any, ...]:
        """The results of a method of :class:`~envlanes.gym.game.GymGame` for some sub-environments, in their order.

        It changes nothing: ``read`` (an attribute) or ``is_wrapped`` (by a class).
        """
        return self._answers(self._envs.engine.read, ids, OWN + method, *arguments)

    def set_attr(self, name: str, values: Any) -> None:
        """Set an attribute, to one value for all or to one for each in a list or tuple.

        It survives killed workers and resets.
        """
        if not isinstance(values, list | tuple):
            values = [values] * self.num_envs
        if len(values) != self.num_envs:
            raise ValueError(
                "Values must be a list or tuple with length equal to the number of environments. "
                f"Got `{len(values)}` values for {self.num_envs} environments."
            )
        self.set_some(dict(enumerate(values)), name)

    def set_some(self, values: Mapping[int, Any], name: str) -> None:
        """:meth:`set_attr` of some sub-environments, to a value for each."""
        changes = {index: Change(name, (copied(value),), is_set=True) for index, value in values.items()}
        self._answers(self._envs.engine.change, changes)

    def _answers(self, request: Callable[..., dict[int, Any]], *arguments: Any, **keywords: Any) -> tuple[Any, ...]:
        return self._now("call_async", lambda: values_or_raise(request(*arguments, **keywords)))

    @property
    def np_random_seed(self) -> tuple[int, ...]:  # type: ignore[override]
        """The seed of every sub-environment's generator."""
        return self.get_attr("np_random_seed")

    @property  # type: ignore[misc]
    def np_random(self) -> tuple[np.random.Generator, ...]:  # type: ignore[override]
        """Every sub-environment's generator, or a copy of it if the sub-environment lives in a worker."""
        return self.get_attr("np_random")

    # Pending calls

    @holds_interrupts
    def _now(self, name: str, work: Callable[[], Any]) -> Any:
        """Run a call; if it is interrupted before its arrays are returned, it has no effect."""
        self._refuse_pending(name)
        return work()

    @holds_interrupts
    def _begin(self, kind: str, work: Callable[[], Any]) -> None:
        self._refuse_pending(f"{kind}_async")
        # "auto" may move environments to main and back: only where none can be there, a thread may touch them.
        engine = self._envs.engine
        is_apart = engine.use_lanes is True and "main" not in map(engine.home, engine.records)
        self._pending = kind, _started(work, in_thread=is_apart)

    @holds_interrupts
    def _wait(self, kind: str, timeout: float | None) -> Any:
        self._assert_is_running()
        if self._pending is None or self._pending[0] != kind:
            raise NoAsyncCallError(f"Calling `{kind}_wait` without any prior call to `{kind}_async`.", kind)
        future = self._pending[1]
        with interrupts_let_through():
            done, _ = wait_for([future], timeout)
        if not done:
            raise multiprocessing.TimeoutError(
                f"The call to `{kind}_wait` has timed out after {timeout} second(s). It is still pending: call "
                f"`{kind}_wait` again to get its result."
            )
        self._pending = None
        interrupts_come_too_late()  # a commit in the thread cannot be undone
        return future.result()

    def _refuse_pending(self, name: str, ids: Iterable[int] | None = None) -> None:
        """Refuse a call to a closed environment, or while another call to any of these sub-environments is pending."""
        self._assert_is_running()
        if self._pending or (self._sent if ids is None else self._sent.keys() & set(ids)):
            kind = self._pending[0] if self._pending else "send"
            raise AlreadyPendingCallError(
                f"Calling `{name}` while waiting for a pending call to `{kind}` to complete.", kind
            )

    def _assert_is_running(self) -> None:
        if self.closed:
            raise ClosedEnvironmentError(f"Trying to operate on `{type(self).__name__}`, after a call to `close()`.")

    # The end

    def stats(self) -> list[LaneStats]:
        """Statistics of each process: turns, seconds, restarts."""
        return self._envs.stats()

    def close_extras(self, timeout: float | None = None, terminate: bool = False) -> None:
        """Close the sub-environments, and the workers that nothing else uses.

        Args:
            timeout: Seconds to wait for a pending call; None until it is done.
            terminate: Do not wait: kill the workers of a pending call.
        """
        calls = {*self._sent.values(), *([self._pending[1]] if self._pending else [])}
        if calls:
            kind = self._pending[0] if self._pending else "send"
            logger.warn(f"Calling `close` while waiting for a pending call to `{kind}` to complete.")
            if wait_for(calls, 0.0 if terminate else timeout).not_done:
                self._envs.engine.abandon()  # first: calls that notice must not start other workers
                if wait_for(calls, _ABANDONED).not_done:
                    log.warning("an environment in the main process does not return; it is abandoned.")
                    return
        self._envs.close()

    def __del__(self) -> None:
        """Nothing: environments that nobody holds any more close themselves; gymnasium would wait for pending calls."""


def _is_limit(value: Any, least: int) -> bool:
    is_number = isinstance(value, int | np.integer) and not isinstance(value, bool)
    return value is None or (is_number and int(value) >= least)


def _started(work: Callable[[], Any], in_thread: bool) -> Future[Any]:
    """Begin a call, in a thread of its own or here, where it is then done.

    Environments in the main process are stepped by the calling thread: they may hold what only the thread that built
    them can use, such as a database connection or an OpenGL context.
    """
    future = Future[Any]()

    def run() -> None:
        try:
            future.set_result(work())
        except BaseException as error:
            if not in_thread and not isinstance(error, Exception):
                raise  # an interrupt flies: the call has not happened
            future.set_exception(error)

    if in_thread:  # not of a pool, whose threads would keep the program from ending
        threading.Thread(target=run, daemon=True).start()
    else:
        run()
    return future
