"""Parallel rollouts by joblib: each worker makes a shard of the environments, plays it, and closes it.

::

    main process                                  joblib worker: a process of loky, or a thread
    ------------                                  ---------------------------------------------
    a shard of the groups for each worker ----->  makes its environments and resets them
    prompts, actor, parsed replies <------------  the caches of its active environments, turn by turn
                                   ------------>  steps them
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
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from multiprocessing.connection import Client, Connection, Listener, wait
from random import Random
from typing import Any, NamedTuple

from envlanes.ragen.seeds import counted_on, first_seed
from ragen.config.loading import as_config, refused
from ragen.errors import ConfigError, LimitReachedError
from ragen.llm_agent.environments import ManagerConfig, read_config
from ragen.llm_agent.rollout.loop import Cache, Rollout

log = logging.getLogger(__name__)

LOKY, THREADING = "loky", "threading"
_BACKEND, _JOBS = "agent_proxy.parallel_backend", "agent_proxy.parallel_n_jobs"


@dataclass(frozen=True)
class Shard:
    """One worker's part of a rollout: its environments, the seed of group 0, and what the loop needs."""

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
        address: Address that the main process listens on.
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


class Shards:
    """Plays rollouts by joblib.

    Attributes:
        backend: joblib's backend, ``"loky"`` or ``"threading"``.
        n_jobs: Number of workers, as joblib's: -1 for one per processor.
        fallback_reason: The reason that (a part of) the last rollout used the ordinary loop; None if it did not.
    """

    def __init__(self, config: Any, n_jobs: int | None = None) -> None:
        """Read the keys; joblib is imported by the first rollout.

        Args:
            config: The whole configuration.
            n_jobs: Number of workers; None for ``agent_proxy.parallel_n_jobs``.

        Raises:
            ConfigError: A key has an invalid value.
        """
        keys = as_config(config).agent_proxy
        self.backend, self.n_jobs = keys.parallel_backend, keys.parallel_n_jobs if n_jobs is None else n_jobs
        if self.n_jobs == 0:
            raise refused(_JOBS, self.n_jobs, "a number of workers, or -1 for one per processor")
        self.fallback_reason: str | None = None
        self._config = config
        self._counted = {"train": 0, "val": 0}
        self._is_used = False

    def play(
        self, rollout: Rollout, mode: str, give_examples: Callable[[Callable[[int, Random], str]], None]
    ) -> tuple[list[dict[str, Any]], int | None]:
        """Play one episode in every environment.

        Args:
            rollout: Asks the actor; it has no callbacks.
            mode: ``"train"`` or ``"val"``.
            give_examples: Sets where a scripted backend gets the actions that environments propose.

        Returns:
            The states of all that was played to its end; and the seed of group 0 if the ordinary loop is to play the
            rest, else None.

        Raises:
            ConfigError: A key is missing or has an invalid value.
            LimitReachedError: The actor may answer no more.
        """
        from joblib import effective_n_jobs

        settings, self.fallback_reason = read_config(self._config, mode), None
        first, groups = first_seed(mode, settings.base_seed, self._counted[mode]), max(settings.group_numbers) + 1
        self._counted[mode] = counted_on(mode, settings.base_seed, self._counted[mode], None, groups)
        jobs = min(effective_n_jobs(self.n_jobs), settings.env_groups)
        if jobs < 2:
            return [], first
        if self.backend == LOKY:
            self._is_used, settings = True, replace(settings, engine=replace(settings.engine, use_lanes=False))
        parts = [tuple(e for e in settings.entries if e.spec.group_id % jobs == index) for index in range(jobs)]
        more = (mode, first, rollout.max_turn, rollout.asks_failed)
        states: list[dict[str, Any]] = []
        try:
            if self.backend == THREADING:
                _check_threads(settings)
            shards = [Shard(replace(settings, entries=part), *more) for part in parts]
            self._play(shards, rollout, give_examples, states)
        except LimitReachedError:
            raise
        except Exception as error:
            self.fallback_reason = f"{type(error).__name__}: {error}"
            log.warning("the parallel rollout failed; using the ordinary loop: %s", self.fallback_reason)
        return states, None if self.fallback_reason is None else first

    def _play(
        self, shards: Sequence[Shard], rollout: Rollout, give_examples: Any, states: list[dict[str, Any]]
    ) -> None:
        """Play all shards; whatever fails is raised, after the workers have ended."""
        for index, shard in enumerate(shards):
            tags = ", ".join(dict.fromkeys(entry.spec.tag for entry in shard.settings.entries))
            envs = len(shard.settings.entries)
            log.info("worker %d of %d (%s): %d environments of %s", index + 1, len(shards), self.backend, envs, tags)
        key, failed, is_over = os.urandom(32), list[BaseException](), False
        connections: list[Connection] = []
        try:
            with Listener(authkey=key) as listener:
                arguments = shards, self.backend, listener.address, key, failed
                jobs = threading.Thread(target=_run, args=arguments, daemon=True)
                jobs.start()
                connections += [listener.accept() for _ in shards]
                _serve(list(connections), rollout, give_examples, states)
                is_over = True
        except (EOFError, OSError) as error:  # a worker is gone, and joblib says why, once the others have ended
            failed.insert(0, error)
        finally:
            for connection in connections:  # a worker that waits for an answer ends
                connection.close()
            if self.backend == LOKY and not is_over:
                _end_processes()
            # A thread that is still stepping ends with its turn, unless that hangs.
            jobs.join(None if is_over else shards[0].settings.engine.step_timeout)
        if failed:
            raise failed[-1]

    def close(self) -> None:
        """End loky's processes."""
        if self._is_used:
            _end_processes()


def _run(shards: Sequence[Shard], backend: str, address: Any, key: bytes, failed: list[BaseException]) -> None:
    from joblib import Parallel, delayed

    try:
        Parallel(n_jobs=len(shards), backend=backend)(delayed(play_shard)(shard, address, key) for shard in shards)
    except BaseException as error:
        failed.append(error)
        for _ in shards:  # in the place of workers that will not connect any more
            with suppress(Exception), Client(address, authkey=key):
                pass


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


def _serve(playing: list[Connection], rollout: Rollout, give_examples: Any, states: list[dict[str, Any]]) -> None:
    """Answer the workers until all shards are over."""
    hosts: dict[int, Connection] = {}

    def example(env_id: int, rng: Random) -> str:
        hosts[env_id].send(Example(env_id, rng))
        return str(hosts[env_id].recv())

    give_examples(example)
    while playing:
        with rollout.timed("environments"):
            ready: Any = wait(playing)
        due: dict[Connection, list[Cache]] = {}
        for connection in ready:
            message = connection.recv()
            if isinstance(message, list):
                due[connection] = message
            else:
                playing.remove(connection)
                states += message[0]
                told = "a worker played %d episodes in %.3f s, %.3f s of it waiting for replies"
                log.info(told, len(message[0]), *message[1:])
        caches = sorted((cache for part in due.values() for cache in part), key=lambda cache: cache["env_id"])
        hosts |= {cache["env_id"]: connection for connection, part in due.items() for cache in part}
        answers = rollout.ask(caches)
        rollout.failures.update(answers.lost)
        for connection, part in due.items():
            ids = [cache["env_id"] for cache in part]
            inputs = [answers.inputs[env_id] for env_id in ids if env_id in answers.inputs]
            connection.send((inputs, {env_id: answers.full[env_id] for env_id in ids if env_id in answers.full}))
