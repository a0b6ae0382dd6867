"""Parallel rollouts by joblib: each worker makes a shard of the environments, plays it, and closes it.

::

    main process                                  joblib worker: a process of loky, or a thread
    ------------                                  ---------------------------------------------
    a shard of the groups for each worker ----->  makes its environments and resets them
    SharedLLMInferenceManager <---- the caches of its active environments, turn by turn
      prompts, actor, parsed replies ---------->  steps them
    states, in the order of environments <------  closes its environments

A shard is a number of whole groups with the ids and seeds that they have in the ordinary loop, and the same manager
plays it, so its rollouts are those of the ordinary loop. All workers that wait are answered in one batch. If a worker
is killed or anything else fails, the ordinary loop plays the shards that are not over, from their seeds, and the log
says why.

Worker processes play in themselves, whatever ``es_manager.use_multiprocessing`` says. Threads share the main process,
whose deadlines and isolated random generators serve its main thread alone: their environments live where that key says,
and types that draw from global generators need ``true``.
"""

from __future__ import annotations

import logging
import os
import threading
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from multiprocessing.connection import Client, Connection, Listener
from queue import Empty, SimpleQueue
from random import Random
from typing import Any, NamedTuple, Self

from envlanes.ragen.seeds import counted_on, first_seed
from ragen.errors import ConfigError, LimitReachedError
from ragen.llm_agent.config.environments import ManagerConfig, read_config
from ragen.llm_agent.rollout.player import Cache, ParallelLoop, RolloutPlayer, actor_of
from ragen.llm_agent.rollout.schedules import ordinary_schedule
from ragen.settings import choice, refused, setting

log = logging.getLogger(__name__)

BACKENDS = LOKY, THREADING = "loky", "threading"
_BACKEND, _JOBS = "agent_proxy.parallel_backend", "agent_proxy.parallel_n_jobs"


class SharedLLMInferenceManager:
    """Shares one actor among all workers: any thread may call it, and the actor gets one call at a time."""

    def __init__(self, actor_rollout_wg: Any) -> None:
        """Share an actor.

        Args:
            actor_rollout_wg: Anything with ``generate_sequences``: a worker group of verl, also of Ray, one of RAGEN's
                wrappers, or an actor of this package.
        """
        self.actor_rollout_wg = actor_rollout_wg
        self._lock = threading.Lock()

    def generate_sequences(self, lm_inputs: Any) -> Any:
        """Generate replies to a batch of prompts."""
        with self._lock:
            return self.actor_rollout_wg.generate_sequences(lm_inputs)


@dataclass(frozen=True)
class Shard:
    """One worker's part of a rollout.

    Attributes:
        settings: The manager's settings, with the environments of this shard.
        mode: ``"train"`` or ``"val"``.
        seed: The seed of group 0.
        max_turn: Maximum number of turns.
        asks_failed: Whether the model is asked about environments that failed in their reset, as in training.
    """

    settings: ManagerConfig
    mode: str
    seed: int
    max_turn: int
    asks_failed: bool


class Example(NamedTuple):
    """A question of a scripted backend: which action an environment proposes."""

    env_id: int
    rng: Random


def play_shard(shard: Shard, address: Any, key: bytes) -> None:
    """Play a shard in a joblib worker.

    Args:
        shard: The shard.
        address: Where the main process listens.
        key: Authenticates the connection.
    """
    from ragen.llm_agent.es_manager import EnvStateManager

    start, waited, turn = time.perf_counter(), 0.0, 0
    with Client(address, authkey=key) as main, EnvStateManager(shard.settings, shard.mode) as manager:
        active = manager.reset(shard.seed)
        if not shard.asks_failed:
            active = manager.end_failed(active)
        while active and turn < shard.max_turn:
            asked = time.perf_counter()
            main.send(active)
            while isinstance(answers := main.recv(), Example):
                main.send(manager.example_action(*answers))
            waited += time.perf_counter() - asked
            inputs, full = answers
            for env_id, reason in full.items():
                manager.end_episode(env_id, reason)
            active, turn = manager.step(inputs) if inputs else [], turn + 1
        main.send((manager.get_rollout_states(), time.perf_counter() - start, waited))


class Shards(ParallelLoop):
    """Plays rollouts by joblib.

    Attributes:
        backend: joblib's backend, ``"loky"`` or ``"threading"``.
        n_jobs: Number of workers, as joblib's: -1 for one per processor.
        fallback_reason: Why (a part of) the last rollout was played by the ordinary loop; None if it was not.
    """

    def __init__(self, config: Any, n_jobs: int | None = None) -> None:
        """Read the keys; joblib is imported by the first rollout.

        Args:
            config: The whole configuration.
            n_jobs: Number of workers; None for ``agent_proxy.parallel_n_jobs``.

        Raises:
            ConfigError: A key has an invalid value.
        """
        self.backend = choice(config, _BACKEND, LOKY, BACKENDS)
        self.n_jobs = setting(config, _JOBS, int, -1) if n_jobs is None else n_jobs
        if self.n_jobs == 0:
            raise refused(_JOBS, self.n_jobs, "a number of workers, or -1 for one per processor")
        self.fallback_reason: str | None = None
        self._config = config
        self._settings: dict[str, ManagerConfig] = {}  # by mode
        self._counted = dict.fromkeys(("train", "val"), 0)
        self._is_used = False

    def play(
        self, player: RolloutPlayer, meta_info: Mapping[str, Any], val: bool
    ) -> tuple[list[dict[str, Any]], int | None]:
        """See :class:`~ragen.llm_agent.rollout.player.ParallelLoop`.

        Raises:
            ConfigError: A key is missing or has an invalid value.
            LimitReachedError: The actor may answer no more.
        """
        from joblib import effective_n_jobs

        mode = "val" if val else "train"
        if mode not in self._settings:
            self._settings[mode] = read_config(self._config, mode)
        settings, self.fallback_reason = self._settings[mode], None
        first, counted = first_seed(mode, settings.base_seed, self._counted[mode]), max(settings.group_numbers) + 1
        self._counted[mode] = counted_on(mode, settings.base_seed, self._counted[mode], None, counted)
        jobs = min(effective_n_jobs(self.n_jobs), settings.env_groups)
        if jobs < 2:
            return [], first
        if self.backend == LOKY:
            self._is_used, settings = True, replace(settings, engine=replace(settings.engine, use_lanes=False))
        shards = [
            Shard(
                replace(settings, entries=tuple(e for e in settings.entries if e.spec.group_id % jobs == index)),
                *(mode, first, player.max_turn, player.is_training),
            )
            for index in range(jobs)
        ]
        rollout = _Rollout(player, val, meta_info)
        try:
            if self.backend == THREADING:
                _check_threads(settings)
            rollout.play(shards, self.backend)
        except LimitReachedError:
            raise
        except Exception as error:
            self.fallback_reason = f"{type(error).__name__}: {error}"
            log.warning("the parallel rollout failed; using the ordinary loop: %s", self.fallback_reason)
        states = sorted(rollout.states, key=lambda state: state["env_id"])
        return states, None if self.fallback_reason is None else first

    def close(self) -> None:
        """End loky's processes."""
        if self._is_used:
            _end_processes()


def _check_threads(settings: ManagerConfig) -> None:
    drawing = {entry.spec.env_type for entry in settings.entries if entry.spec.uses_global_rng}
    if drawing and settings.engine.use_lanes is not True:
        raise ConfigError(
            f"{', '.join(sorted(drawing))} may draw from the process's global generators, which threads share: set "
            f"es_manager.use_multiprocessing=true, or {_BACKEND}={LOKY}."
        )


def _end_processes() -> None:
    from joblib.externals.loky import get_reusable_executor

    get_reusable_executor(reuse=True).shutdown(wait=True, kill_workers=True)


class _Rollout:
    """One rollout: a thread runs joblib, one reads each worker's messages, and the caller's thread answers them.

    Attributes:
        states: The states of the shards that are over.
    """

    def __init__(self, player: RolloutPlayer, val: bool, meta_info: Mapping[str, Any]) -> None:
        self._player, self._meta_info = player, meta_info
        self._ctx_manager = player.val_ctx_manager if val else player.train_ctx_manager
        self._inference = SharedLLMInferenceManager(player)
        self._events: SimpleQueue[tuple[Connection | None, Any]] = SimpleQueue()
        self._kept: list[tuple[Connection | None, Any]] = []
        self._connections: list[Connection] = []
        self.states: list[dict[str, Any]] = []

    def play(self, shards: Sequence[Shard], backend: str) -> None:
        """Play all shards; whatever fails is raised, after the workers have ended."""
        for index, shard in enumerate(shards):
            tags = ", ".join(dict.fromkeys(entry.spec.tag for entry in shard.settings.entries))
            envs = len(shard.settings.entries)
            log.info("worker %d of %d (%s): %d environments of %s", index + 1, len(shards), backend, envs, tags)
        key, is_over = os.urandom(32), False
        with Listener(authkey=key) as listener:
            jobs = threading.Thread(target=self._run, args=(shards, backend, listener.address, key), daemon=True)
            jobs.start()
            threading.Thread(target=self._accept, args=(listener, len(shards)), daemon=True).start()
            try:
                self._serve(len(shards))
                is_over = True
            finally:
                for connection in self._connections:  # a worker that waits for an answer ends
                    connection.close()
                if backend == LOKY and not is_over:
                    _end_processes()
                # A thread that is still stepping ends with its turn, unless that hangs.
                jobs.join(None if is_over else shards[0].settings.engine.step_timeout)

    # Threads that pass things on

    def _run(self, shards: Sequence[Shard], backend: str, address: Any, key: bytes) -> None:
        from joblib import Parallel, delayed

        try:
            Parallel(n_jobs=len(shards), backend=backend)(delayed(play_shard)(shard, address, key) for shard in shards)
        except BaseException as error:
            self._events.put((None, error))

    def _accept(self, listener: Listener, count: int) -> None:
        with suppress(OSError, EOFError):  # the listener was closed
            for _ in range(count):
                connection = listener.accept()
                self._connections.append(connection)
                threading.Thread(target=self._read, args=(connection,), daemon=True).start()

    def _read(self, connection: Connection) -> None:
        with suppress(EOFError, OSError, TypeError):  # it ended, and joblib says why; TypeError: it was closed here
            while True:
                self._events.put((connection, connection.recv()))

    # The caller's thread

    def _serve(self, left: int) -> None:
        """Answer the workers until all shards are over."""
        while left:
            due: dict[Connection, Sequence[Cache]] = {}
            for connection, message in self._arrived():
                if connection is None:
                    raise message
                if isinstance(message, list):
                    due[connection] = message
                else:
                    left -= 1
                    self._end(*message)
            if due:
                self._answer(due)

    def _arrived(self) -> list[tuple[Connection | None, Any]]:
        """All messages that are there, at least one."""
        events, self._kept = self._kept, []
        if not events:
            with self._player.timed("environments"):
                events.append(self._events.get())
        with suppress(Empty):
            while True:
                events.append(self._events.get_nowait())
        return events

    def _answer(self, due: Mapping[Connection, Sequence[Cache]]) -> None:
        """Ask the actor about all environments that are due, and send each worker its inputs."""
        caches = sorted((cache for part in due.values() for cache in part), key=lambda cache: cache["env_id"])
        hosts = {cache["env_id"]: connection for connection, part in due.items() for cache in part}
        self._player.give_examples(lambda env_id, rng: self._example(hosts[env_id], Example(env_id, rng)))
        inputs, lost, full = self._player.ask(self._ctx_manager, caches, self._meta_info, self._inference)
        self._player.failures.update(lost)
        for connection, part in due.items():
            ids = [cache["env_id"] for cache in part]
            came = [inputs[env_id] for env_id in ids if env_id in inputs]
            with suppress(OSError):  # its worker ended, and joblib says why
                connection.send((came, {env_id: full[env_id] for env_id in ids if env_id in full}))

    def _example(self, host: Connection, question: Example) -> str:
        """Ask an environment's worker, which waits, for an action; other messages are kept."""
        host.send(question)
        while True:
            connection, message = self._events.get()
            if connection is None:
                raise message
            if connection is host:
                return str(message)
            self._kept.append((connection, message))

    def _end(self, states: list[dict[str, Any]], seconds: float, waited: float) -> None:
        log.info(
            "a worker played %d episodes in %.3f s, %.3f s of it waiting for replies", len(states), seconds, waited
        )
        self.states += states


class ParallelRolloutManager(RolloutPlayer):
    """A player of parallel rollouts, whatever the configuration says.

    What ``LLMAgentProxy`` is with ``agent_proxy.use_parallel_rollout: true``, under the name that RAGEN's forks use. A
    context manager; ``close`` may be called twice.
    """

    def __init__(self, config: Any, actor_rollout_wg: Any, tokenizer: Any, n_jobs: int | None = None) -> None:
        """Take the parts; workers and environments are made by each rollout.

        Args:
            config: The whole configuration.
            actor_rollout_wg: Who answers; see :class:`~ragen.llm_agent.rollout.player.RolloutPlayer`.
            tokenizer: The actor's tokenizer.
            n_jobs: Number of workers; None for ``agent_proxy.parallel_n_jobs``.

        Raises:
            ConfigError: A key has an invalid value.
        """
        actor = actor_of(actor_rollout_wg, config, tokenizer)
        super().__init__(config, actor_rollout_wg, tokenizer, ordinary_schedule(actor), actor, Shards(config, n_jobs))

    parallel_rollout = RolloutPlayer.rollout

    @property
    def proxy(self) -> Self:
        """Itself: the forks' manager has a proxy, this one is what a proxy is."""
        return self

    @property
    def n_jobs(self) -> int:
        """Number of workers; -1 for one per processor."""
        assert self.parallel is not None
        return self.parallel.n_jobs

    @property
    def fallback_reason(self) -> str | None:
        """Why (a part of) the last rollout was played by the ordinary loop; None if it was not."""
        assert self.parallel is not None
        return self.parallel.fallback_reason
