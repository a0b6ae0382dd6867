"""The environment service: owns workers with environments, and plays turns for its callers.

    sessions (coroutines)                     service (one event loop)
    open / play / close  ------------------>  +----------------------------------+
                                              |  queue 0 -> thread -+            |
                                              |  queue 1 -> thread -+-> EnvSet -> workers 0, 1, ...
                                              |  ...                |            |
                                              |  main    -> thread -+            |
                                              +----------------------------------+

There is one set of environments, and one thread per worker that calls it, so that a slow environment delays no other
worker. Requests that arrive together, or while a worker is busy, are one call, but for resets, of which each call has
one. Time-outs, recovery, journals and crash reports are the engine's.

``es_manager.use_multiprocessing: false`` disables workers; types in ``sequential_env_types`` live in the service's own
process. ``auto`` means workers here, since a round trip is short compared to a model's answer.

A failure is a value, whatever ``es_manager.on_env_failure`` says: ``raise`` would end a training for one environment.
"""

from __future__ import annotations

import asyncio
import copy
import itertools
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import Any, NamedTuple

from envlanes import EnvFailed, EnvSet, EnvSpec, Settings
from envlanes.failures import OnFailure
from envlanes.ragen.turn import Observation, Turn, TurnResult, failed_turn
from ragen.config.loading import as_config
from ragen.errors import SessionLostError
from ragen.llm_agent.environments import EnvEntry, read_config

GATHER = 0.001  # seconds to wait for requests that arrive together


class ServiceLimits(NamedTuple):
    """Limits of a service, which include the time that a request waits for its worker.

    Attributes:
        open_s, play_s: Seconds within which opening an environment, or a turn, is answered.
        max_restarts: Number of times that a session opens its environment again.
    """

    open_s: float
    play_s: float
    max_restarts: int

    @classmethod
    def read(cls, config: Any) -> ServiceLimits:
        """Read the keys.

        Raises:
            ConfigError: A key has an invalid value.
        """
        whole = as_config(config)
        keys, queue_s = whole.es_manager, whole.agent_loop.queue_timeout
        return cls(keys.reset_timeout + queue_s, keys.step_timeout + queue_s, keys.max_restarts)


class Opened(NamedTuple):
    """A trajectory's environment after its reset.

    Attributes:
        observation: The first observation.
        max_actions: Maximum number of actions of the episode.
        env_error: The error of building or resetting it; "" if none.
    """

    observation: Observation
    max_actions: int
    env_error: str = ""


class EnvService:
    """Opens, plays and closes environments concurrently; all methods are coroutines of one event loop."""

    def __init__(self, config: Mapping[str, Any]) -> None:
        """Read the settings; workers start with the first environment.

        Args:
            config: RAGEN's whole configuration as plain dicts, of which ``es_manager``, ``custom_envs`` and
                ``agent_loop`` are read.

        Raises:
            ConfigError: A key of ``es_manager`` or ``agent_loop`` has an invalid value.
        """
        self.limits = ServiceLimits.read(config)
        self._config = config
        self._entries: dict[str, EnvEntry] = {}
        self._settings = read_config(config, "train")
        self._open: dict[str, tuple[int, _Queue]] = {}  # number and queue, by name
        self._numbers = itertools.count()
        self._envs = _ServedEnvs(self._settings.engine, self._settings.keep_failure())
        self._main = _Queue(self._envs, None)
        self._queues: list[_Queue] = []

    async def open(self, name: str, tag: str, seed: int, mode: str = "train") -> Opened:
        """Build and reset an environment.

        Args:
            name: Its unique name, which the caller chooses.
            tag: Key of ``custom_envs``.
            seed: Seed of its episode.
            mode: ``"train"`` or ``"val"``, passed to the environment.

        Raises:
            ConfigError: The tag's entry is invalid.
        """
        if tag not in self._entries:
            self._entries[tag] = read_entry(self._config, tag)
        entry, number = self._entries[tag], next(self._numbers)
        queue = self._queue_for(entry.spec)
        self._open[name] = number, queue
        queue.envs += 1
        spec = replace(entry.spec, config=copy.deepcopy(entry.spec.config), env_id=number, group_id=number)
        found = await queue.ask("open", (spec, seed, mode))
        if name not in self._open:  # its caller gave up meanwhile, and the closing may have come first
            await queue.ask("close", number)
        if isinstance(found, EnvFailed):
            return Opened("", entry.max_actions_per_traj, found.text)
        return Opened(found, entry.max_actions_per_traj)

    async def play(self, name: str, actions: Sequence[str], actions_left: int) -> TurnResult:
        """Play one turn.

        Args:
            name: The name of an open environment.
            actions: The model's actions.
            actions_left: Actions that the episode still allows.

        Returns:
            The result. Of an environment that failed for good, one that ends the game, with ``info["env_error"]``.

        Raises:
            SessionLostError: There is no such environment: another service opened it.
        """
        if name not in self._open:
            raise SessionLostError("an environment is not open in this service; open it and play it again.")
        number, queue = self._open[name]
        result: TurnResult = await queue.ask("play", (number, Turn(tuple(actions), actions_left)))
        return result

    async def close(self, name: str) -> None:
        """Close an environment; one that is not open is ignored."""
        if name in self._open:
            number, queue = self._open.pop(name)
            queue.envs -= 1
            await queue.ask("close", number)

    async def shut_down(self) -> None:
        """Close all environments and end the workers."""
        self._open.clear()
        for queue in [self._main, *self._queues]:
            await queue.shut_down(self._settings.engine.step_timeout)
        await asyncio.to_thread(self._envs.close)

    def _queue_for(self, spec: EnvSpec) -> _Queue:
        """The worker with the fewest environments."""
        settings = self._settings
        if settings.engine.use_lanes is False or spec.env_type in settings.engine.sequential_env_types:
            return self._main
        if not self._queues:
            self._queues = [_Queue(self._envs, index) for index in range(settings.engine.workers)]
        return min(self._queues, key=lambda queue: queue.envs)


class _ServedEnvs(EnvSet):
    """The environments of a service, opened and closed one by one; several threads may use different ones."""

    holder = "environment service"

    def __init__(self, settings: Settings, on_failure: OnFailure) -> None:
        policy = "fallback" if settings.on_env_failure == "raise" else settings.on_env_failure
        self._hold([], replace(settings, use_lanes=False, on_env_failure=policy), on_failure=on_failure)

    def open(self, spec: EnvSpec, seed: int, mode: str, lane: int | None) -> Any:
        """Add an environment to a worker (None: the main process), and reset it."""
        self._engine.add(spec, lane)
        return self._engine.reset({spec.env_id: seed}, {"mode": mode})[spec.env_id]

    def play(self, items: Sequence[tuple[int, Turn]]) -> list[TurnResult]:
        """Play turns of environments, given by number."""
        found = self._engine.play(dict(items))
        for number, result in found.items():
            if isinstance(result, EnvFailed):
                found[number] = failed_turn(result.text, self._engine.observation(number))
        return [found[number] for number, _ in items]

    def remove(self, numbers: Sequence[int]) -> list[None]:
        """Close environments; those that were never opened are ignored."""
        self._engine.remove(numbers)
        return [None for _ in numbers]


class _Queue:
    """Requests for one worker, or for the service's own process; used in one event loop."""

    def __init__(self, envs: _ServedEnvs, lane: int | None) -> None:
        self.envs = 0  # that are open
        self._calls: dict[str, Callable[[list[Any]], list[Any]]] = {
            "open": lambda asked: [envs.open(spec, seed, mode, lane) for spec, seed, mode in asked],
            "play": envs.play,
            "close": envs.remove,
        }
        self._thread = ThreadPoolExecutor(1, thread_name_prefix=f"ragen worker {lane}")
        self._waiting: list[tuple[str, Any, asyncio.Future[Any]]] = []
        self._server: asyncio.Task[None] | None = None

    async def ask(self, verb: str, item: Any) -> Any:
        """Add a request to the next call, and wait for its result."""
        loop = asyncio.get_running_loop()
        future = loop.create_future()
        self._waiting.append((verb, item, future))
        if self._server is None or self._server.done():
            self._server = loop.create_task(self._serve())
        return await future

    async def shut_down(self, patience: float) -> None:
        """End the thread after its current call, waiting at most ``patience`` seconds."""
        for _, _, future in self._waiting:
            future.cancel()
        self._waiting.clear()
        await asyncio.wait([asyncio.ensure_future(asyncio.to_thread(self._thread.shutdown))], timeout=patience)

    async def _serve(self) -> None:
        while self._waiting:
            await asyncio.sleep(GATHER)
            # Without those whose callers have given up; what they opened is closed. One is reset, and others later, so
            # that turns do not wait for them.
            live = [job for job in self._waiting if job[0] == "close" or not job[2].done()]
            resets = [job for job in live if job[0] == "open"]
            batch = [*resets[:1], *(job for job in live if job[0] != "open")]
            self._waiting = resets[1:]
            try:
                answers = await asyncio.get_running_loop().run_in_executor(self._thread, self._work, batch)
            except RuntimeError:  # shut_down has ended the thread: this batch had no effect
                for _, _, future in batch:
                    future.cancel()
                return
            for (_, _, future), answer in zip(batch, answers, strict=True):
                if future.done():  # its caller has given up
                    continue
                if isinstance(answer, BaseException):
                    future.set_exception(answer)
                else:
                    future.set_result(answer)

    def _work(self, batch: Sequence[tuple[str, Any, Any]]) -> list[Any]:
        """In the thread: carry out requests, one engine call per kind; an exception is the result of all of a kind."""
        answers: dict[int, Any] = {}
        for verb, call in self._calls.items():
            places = [place for place, (asked, _, _) in enumerate(batch) if asked == verb]
            if places:
                try:
                    found = call([batch[place][1] for place in places])
                except Exception as error:
                    found = [error] * len(places)
                answers |= zip(places, found, strict=True)
        return [answers[place] for place in range(len(batch))]


def read_entry(config: Mapping[str, Any], tag: str) -> EnvEntry:
    """The entry of a tag, whichever tags the configuration plays.

    Raises:
        ConfigError: It is invalid.
    """
    part = {"env_groups": 1, "group_size": 1, "env_configs": {"tags": [tag], "n_groups": [1]}}
    return read_config({**config, "es_manager": {**config["es_manager"], "train": part}}, "train").entries[0]
