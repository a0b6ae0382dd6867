"""``LaneVectorEnv``: gymnasium's vector environment, with sub-environments in workers.

        reset / step / call             reset_async, step_async, call_async          send
               |                                     |                                 |
               |                            Pending (a thread)                PendingSteps (a thread
               v                                     v                         each home)   |
    +-------------------------------------- SubEnvs <-----------------------------------------+
    |  which sub-environment is stepped, and which begins its next episode                    |
    +-----------------------------------------------------------------------------------------+
               |                                     |
          Engine: lanes with many sub-environments each, journals, replays
               |
          results in order -> Batches -> observations, rewards, terminations, truncations, infos

Differences from gymnasium's ``AsyncVectorEnv``: several sub-environments share a worker; a killed worker is restarted
and its sub-environments are rebuilt from their journals; a call whose ``*_wait`` timed out is still pending, and
returns its own result when waited for again; after an error everything remains usable; no sub-environment is built only
to query its spaces; a subset can be stepped.
"""

from __future__ import annotations

import logging
import multiprocessing
import pickle
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from types import CellType, FunctionType
from typing import Any

import numpy as np
from gymnasium import Env, Space, logger
from gymnasium.error import AlreadyPendingCallError, ClosedEnvironmentError, NoAsyncCallError
from gymnasium.vector import AutoresetMode, VectorEnv
from gymnasium.vector.utils import iterate

from envlanes import Engine, EnvSpec, LaneStats
from envlanes.episode.journal import Change
from envlanes.episode.values import copied
from envlanes.games.gym_game import CHECK, DESCRIBE, GYM, HAS, IS_WRAPPED, NOT_TO_CALL, READ, Description, IsMethod
from envlanes.games.gym_old import GYM_OLD
from envlanes.games.values import dumped
from envlanes.gym import arguments, spaces
from envlanes.gym.arguments import OptionsSource, SeedsSource
from envlanes.gym.batch import Batches, Infos, Stepped
from envlanes.gym.pending import Pending, PendingSteps
from envlanes.gym.sub_envs import SubEnvs
from envlanes.interrupts import holds_interrupts, interrupts_come_too_late
from envlanes.settings import OnEnvFailure

log = logging.getLogger(__name__)

_ABANDONED = 5.0  # seconds to wait for a call whose workers were killed


class EnvFn:
    """A function that builds an environment; it is sent to workers, even if it is a closure or lambda.

    Attributes:
        preload: Modules that workers need to build and play it, imported once for all of them.
        uses_global_rng: Whether the environment may draw from the global generators, whose states are then kept
            separate.
        replayable: Whether it can be rebuilt from its seed and actions.
    """

    preload = ("gymnasium", "envlanes.games.gym_game", __name__)

    def __init__(self, build: Callable[[], Any], uses_global_rng: bool = False, replayable: bool = True) -> None:
        """Build environments with this function."""
        self._build = build
        self.uses_global_rng, self.replayable = uses_global_rng, replayable
        self.__module__ = getattr(build, "__module__", None) or "builtins"
        self.__qualname__ = getattr(build, "__qualname__", type(build).__qualname__)

    def __call__(self) -> Any:
        """Build one."""
        return self._build()


def as_it_is(build: Any) -> Any:
    """A function of a generator with the current values of its closure, which change as the generator goes on."""
    if not (cells := getattr(build, "__closure__", None)):
        return build
    closure = tuple(CellType(cell.cell_contents) for cell in cells)
    made = FunctionType(build.__code__, build.__globals__, build.__name__, build.__defaults__, closure)
    made.__kwdefaults__ = build.__kwdefaults__
    return made


class LaneVectorEnv(VectorEnv[Any, Any, np.ndarray]):
    """Steps sub-environments in worker processes, many in each.

    Equal to ``SyncVectorEnv`` bit for bit, for environments in which everything follows from seed, options and actions.

    Attributes:
        num_envs: Number of sub-environments.
        autoreset_mode: When a sub-environment whose episode has ended begins the next one.
    """

    _pending: Pending | None = None

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
        autoreset_options: OptionsSource = None,
        autoreset_seeds: SeedsSource = None,
        uses_global_rng: bool = False,
        old_api: bool = False,
    ) -> None:
        """Start workers, build the sub-environments there, and query their spaces.

        Args:
            env_fns: Functions that build the sub-environments.
            shared_memory: Whether large observations may be sent through shared memory; rejects spaces whose
                observations have no fixed size.
            copy: Whether each step returns a new array of observations.
            context: How workers start: ``"forkserver"`` (also for None and ``"fork"``) or ``"spawn"``.
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
            max_restarts: How often a sub-environment's worker may be killed, perhaps externally, during one step.
            autoreset_options: Options of autoresets: one mapping for all, one for each, or a function of index and
                episode (the last explicit reset began episode 1).
            autoreset_seeds: Seeds of autoresets, likewise; None continues with the generators.
            uses_global_rng: Whether sub-environments draw from ``random`` or ``numpy.random``, whose states are then
                kept separate for each; costs some microseconds per step.
            old_api: Whether sub-environments have the interface of ``gym`` before 0.26: ``reset`` returns only an
                observation, ``step`` four values. Their spaces may be ``gym``'s; options are passed as far as ``reset``
                accepts them.

        Raises:
            ValueError: An argument is invalid, or shared memory does not fit the space.
            RuntimeError: Sub-environments have different spaces.
            Exception: Building a sub-environment raised it.
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
        self.env_fns = env_fns = env_fns if isinstance(env_fns, Sequence) else list(map(as_it_is, env_fns))
        self.num_envs = len(env_fns)
        self.shared_memory, self.copy, self.context, self.daemon = shared_memory, copy, context, daemon
        self.worker, self.observation_mode, self.max_concurrency = worker, observation_mode, max_concurrency
        self.autoreset_mode = AutoresetMode(autoreset_mode)
        next_options = arguments.options_source(autoreset_options, self.num_envs)
        next_seed = arguments.seeds_source(autoreset_seeds, self.num_envs)
        specs = [spec_of(EnvFn(fn, uses_global_rng), index, old_api) for index, fn in enumerate(env_fns)]
        self._envs = SubEnvs(specs, settings, self.autoreset_mode, next_options, next_seed)
        self._sent = PendingSteps(self._envs.step_envs)
        try:
            self._learn_spaces()
        except BaseException:
            self._envs.engine.close()
            self._envs.forget()
            self.closed = True
            raise
        self._batches = Batches(self.single_observation_space, self.num_envs, copy)

    def _learn_spaces(self) -> None:
        engine, mode = self._envs.engine, self.observation_mode
        described = descriptions(engine, None if mode == "different" else 1)
        found = spaces.batched(mode, described + described[:1] * (self.num_envs - len(described)))
        self.observation_space, self.single_observation_space, self.action_space, self.single_action_space = found
        self.metadata = {**metadata(described[0]), "autoreset_mode": self.autoreset_mode}
        self.render_mode = described[0].render_mode
        if self.shared_memory and engine.settings.backend != "ray":  # whose lanes are on other machines
            spaces.refuse_shared_memory(self.single_observation_space)
            self._envs.buffer = spaces.buffer_for(self.single_observation_space, self.num_envs)
        shared = dumped((self.single_observation_space, self.single_action_space))
        spaces.raise_if_differing(mode, found, fits(engine, mode == "same", shared))

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
        seeds = arguments.seeds_from(seed, self.num_envs)
        ids, given = arguments.options_from(options, self.num_envs)

        def work() -> Any:
            shown = self._envs.reset_envs(ids, [seeds[index] for index in ids], [given[index] for index in ids])
            return self._batches.of_reset(self._envs.last, ids, shown)

        return work

    def _stepping(self, actions: Any) -> Callable[[], Any]:
        each = actions_of(self.action_space, actions, self.num_envs)
        return lambda: self._batches.of_step(self._envs.step_envs(range(self.num_envs), each))

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
        some = self._free(arguments.ids_from(ids, self.num_envs))
        results = self._envs.step_envs(some, actions_of(self.action_space, actions, len(some)))
        return self._with_ids(some, self._batches.of_step(results))

    @holds_interrupts
    def send(self, actions: Any, ids: Sequence[int] | None = None) -> None:
        """Begin to step some sub-environments, by default all, without waiting; :meth:`recv` returns results.

        May be called again, with others, before anything is received.
        """
        some = self._free(arguments.ids_from(range(self.num_envs) if ids is None else ids, self.num_envs))
        each = actions_of(self.action_space, actions, len(some))
        self._sent.send(some, each, [self._envs.engine.home(index) for index in some])

    @holds_interrupts
    def recv(self, min_envs: int = 1, *, in_order: bool = False, timeout: float | None = None) -> Stepped:
        """Wait for sub-environments that were sent a step.

        Args:
            min_envs: How many to wait for; all finished ones are returned.
            in_order: Return exactly ``min_envs``, those that were sent first, regardless of which are faster.
            timeout: Maximum number of seconds to wait.

        Returns:
            Like :meth:`step_some`.
        """
        self._assert_is_running()
        results = self._sent.receive(min_envs, in_order, timeout)
        interrupts_come_too_late()
        return self._with_ids(list(results), self._batches.of_step(list(results.values())))

    @staticmethod
    def _with_ids(ids: list[int], stepped: Stepped) -> Stepped:
        stepped[4]["env_id"] = np.array(ids)
        return stepped

    # Attributes and methods

    def render(self) -> tuple[Any, ...]:
        """The rendering of each sub-environment."""
        return self._now("call_async", lambda: read_all(self._envs.engine, "render", calls=True))

    def call(self, name: str, *args: Any, **kwargs: Any) -> tuple[Any, ...]:
        """Call a method of every sub-environment, or read an attribute; returns a tuple of the results.

        The call is part of the episode: it is repeated when a sub-environment is rebuilt.
        """
        return self.call_some(range(self.num_envs), name, *args, **kwargs)

    def call_some(self, ids: Sequence[int], name: str, *args: Any, **kwargs: Any) -> tuple[Any, ...]:
        """:meth:`call` of some sub-environments, in the order of ``ids``."""
        return self._now("call_async", lambda: call_all(self._envs.engine, name, args, kwargs, ids))

    def call_async(self, name: str, *args: Any, **kwargs: Any) -> None:
        """Begin a :meth:`call`; :meth:`call_wait` returns its result."""
        self._begin("call", lambda: call_all(self._envs.engine, name, args, kwargs))

    def call_wait(self, timeout: float | None = None) -> tuple[Any, ...]:
        """The result of :meth:`call_async`; after a ``TimeoutError`` it can be called again."""
        return self._wait("call", timeout)

    def get_attr(self, name: str) -> tuple[Any, ...]:
        """An attribute of every sub-environment; methods are called."""
        return self.get_attr_of(range(self.num_envs), name)

    def get_attr_of(self, ids: Sequence[int], name: str) -> tuple[Any, ...]:
        """:meth:`get_attr` of some sub-environments, in the order of ``ids``."""
        return self._now("call_async", lambda: read_all(self._envs.engine, name, ids=ids))

    def read_of(self, ids: Sequence[int], name: str) -> tuple[Any, ...]:
        """:meth:`get_attr_of` that calls no method; an ``IsMethod`` stands for one."""
        return self._now("call_async", lambda: _values(self._envs.engine.read(ids, READ, name)))

    def have_attr(self, ids: Sequence[int], name: str) -> tuple[bool, ...]:
        """Whether each of the given sub-environments has an attribute, which is not called."""
        return self._now("call_async", lambda: _values(self._envs.engine.read(ids, HAS, name)))

    def are_wrapped(self, wrapper: type, ids: Sequence[int]) -> tuple[bool, ...]:
        """Whether each of the given sub-environments, or anything it wraps, is an instance of a class."""
        return self._now("call_async", lambda: are_wrapped(self._envs.engine, wrapper, ids))

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
        self.set_attr_of(dict(enumerate(values)), name)

    def set_attr_of(self, values: Mapping[int, Any], name: str) -> None:
        """:meth:`set_attr` of some sub-environments, to a value for each."""
        self._now("set_attr", lambda: set_all(self._envs.engine, name, values))

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
        engine = self._envs.engine
        is_apart = engine.use_lanes is True and "main" not in map(engine.home, engine.env_ids)
        self._pending = Pending(kind, work, in_thread=is_apart)

    @holds_interrupts
    def _wait(self, kind: str, timeout: float | None) -> Any:
        self._assert_is_running()
        pending = self._pending
        if pending is None or pending.kind != kind:
            raise NoAsyncCallError(f"Calling `{kind}_wait` without any prior call to `{kind}_async`.", kind)
        pending.wait(timeout)
        self._pending = None
        interrupts_come_too_late()
        return pending.result()

    def _refuse_pending(self, name: str) -> None:
        if self.closed:
            self._assert_is_running()
        under_way = self._pending.kind if self._pending is not None else "send" if self._sent.order else None
        if under_way is not None:
            raise AlreadyPendingCallError(
                f"Calling `{name}` while waiting for a pending call to `{under_way}` to complete.", under_way
            )

    def _free(self, ids: list[int]) -> list[int]:
        self._assert_is_running()
        taken = [index for index in ids if index in self._sent.order]
        if self._pending is not None or taken:
            kind = self._pending.kind if self._pending is not None else f"send` of {taken} by `send"
            raise AlreadyPendingCallError(f"Calling while waiting for a pending call to `{kind}` to complete.", kind)
        return ids

    def _assert_is_running(self) -> None:
        if self.closed:
            raise ClosedEnvironmentError(f"Trying to operate on `{type(self).__name__}`, after a call to `close()`.")

    # The end

    def stats(self) -> list[LaneStats]:
        """Statistics of each process: turns, seconds, restarts."""
        return self._envs.engine.stats()

    def close_extras(self, timeout: float | None = None, terminate: bool = False) -> None:
        """Close the sub-environments, and the workers that nothing else uses.

        Args:
            timeout: Seconds to wait for a pending call; None until it is done.
            terminate: Do not wait: kill the workers of a pending call.
        """
        if (envs := getattr(self, "_envs", None)) is not None:
            try:
                _close(envs.engine, self._pending, self._sent, timeout, terminate)
            finally:
                envs.forget()

    def __del__(self) -> None:
        """Close the environment when it is garbage collected."""
        if not getattr(self, "closed", True) and (envs := getattr(self, "_envs", None)) is not None:
            envs.engine.close(forgotten=True)
            envs.forget()


def spec_of(build: EnvFn, index: int, old_api: bool = False) -> EnvSpec:
    """The engine's specification of a sub-environment."""
    return EnvSpec.of(build, env_id=index, tag="env", game=GYM_OLD if old_api else GYM)


def descriptions(engine: Engine, count: int | None) -> list[Description]:
    """Spaces and metadata of the first ``count`` sub-environments, or of all."""
    ids = engine.env_ids[:count]
    return list(_values(engine.read(ids, DESCRIBE)))


def metadata(description: Description) -> dict[str, Any]:
    """The metadata of a sub-environment, a copy."""
    return pickle.loads(description.metadata)


def fits(engine: Engine, is_same: bool, shared: bytes) -> list[tuple[bool, bool]]:
    """Whether each sub-environment has these spaces; see :meth:`envlanes.games.gym_game.GymGame.check`."""
    return list(_values(engine.read(engine.env_ids, CHECK, is_same, shared)))


def call_all(
    engine: Engine, name: str, args: tuple[Any, ...], kwargs: Mapping[str, Any], ids: Sequence[int] | None = None
) -> tuple[Any, ...]:
    """Call a method of all or some sub-environments; the call is journaled."""
    refuse(name)
    return _values(engine.call(engine.env_ids if ids is None else ids, name, *copied(args), **copied(dict(kwargs))))


def read_all(engine: Engine, name: str, calls: bool = False, ids: Sequence[int] | None = None) -> tuple[Any, ...]:
    """Read an attribute of all or some sub-environments; not journaled, unless it is a method.

    Args:
        engine: Their engine.
        name: Name of the attribute.
        calls: Whether it is known to be a method that changes nothing.
        ids: Indices of the sub-environments; None for all.
    """
    refuse(name)
    ids = list(engine.env_ids if ids is None else ids)
    if calls:
        return _values(engine.read(ids, name))
    found = _values(engine.read(ids, READ, name))
    return call_all(engine, name, (), {}, ids) if any(type(each) is IsMethod for each in found) else found


def are_wrapped(engine: Engine, wrapper: type, ids: Sequence[int]) -> tuple[bool, ...]:
    """Whether each of these sub-environments, or anything it wraps, is an instance of a class."""
    return _values(engine.read(ids, IS_WRAPPED, wrapper))


def set_all(engine: Engine, name: str, values: Mapping[int, Any]) -> None:
    """Set an attribute of each sub-environment to its value."""
    _values(engine.change({i: Change(name, (copied(value),), is_set=True) for i, value in values.items()}))


def refuse(name: str) -> None:
    """Refuse calls that would bypass the journals of episodes.

    Raises:
        ValueError: The method is one of these.
    """
    if name in NOT_TO_CALL:
        raise ValueError(f"Trying to call function `{name}` with `call`, use `{name}` directly instead.")


def actions_of(space: Space[Any], actions: Any, count: int) -> list[Any]:
    """One action for each of ``count`` sub-environments, independent of later changes to the caller's array.

    Raises:
        ValueError: There are fewer or more.
        TypeError: The actions cannot be iterated over.
    """
    each = list(iterate(space, actions.copy() if isinstance(actions, np.ndarray) else copied(actions)))
    if len(each) != count:
        raise ValueError(f"expected an action for each of {count} environments, got {len(each)}; none was stepped.")
    return each


def _values(found: Mapping[int, Any]) -> tuple[Any, ...]:
    """The results of environments, in order.

    Raises:
        Exception: The first exception among them.
    """
    for value in found.values():
        if isinstance(value, Exception):
            cause = value.__cause__
            if isinstance(cause, Exception):
                cause.add_note(str(value))
                raise cause
            raise value
    return tuple(found.values())


def _close(engine: Engine, pending: Pending | None, sent: PendingSteps, timeout: float | None, terminate: bool) -> None:
    """Wait for pending calls, or end them, and close the engine.

    Args:
        engine: The engine.
        pending: A call that was begun and not waited for.
        sent: Steps that were sent and not received.
        timeout: Seconds to wait for them; None until they are done.
        terminate: Do not wait.
    """
    under_way = pending.kind if pending is not None else "send" if sent.order else None
    if under_way is not None:
        logger.warn(f"Calling `close` while waiting for a pending call to `{under_way}` to complete.")
        if not _is_over(pending, sent, 0.0 if terminate else timeout):
            engine.abandon()
            if not _is_over(pending, sent, _ABANDONED):
                log.warning("an environment in the main process does not return from `%s`; it is abandoned.", under_way)
                return
    engine.close()


def _is_over(pending: Pending | None, sent: PendingSteps, timeout: float | None) -> bool:
    """Wait for pending calls, ignoring their results; returns whether they have ended."""
    deadline = None if timeout is None else time.monotonic() + timeout
    if pending is not None:
        try:
            pending.wait(timeout)
        except multiprocessing.TimeoutError:
            if not pending.is_done:
                return False
        except BaseException:
            log.debug("a call that was pending when closing has failed", exc_info=True)
    return sent.wait_all(None if deadline is None else max(0.0, deadline - time.monotonic()))
