"""The environment service: it owns lanes and the environments in them, and plays turns for whoever asks.

    agent loops (coroutines)                         service (one event loop)
    open / play / close  ------------------>  +----------------------------------+
                                              |  queue 0 -> thread -+            |
                                              |  queue 1 -> thread -+-> EnvEngine -> lanes 0, 1, ...
                                              |  ...                |            |
                                              |  home    -> thread -+            |
                                              +----------------------------------+

There is one engine (:mod:`ragen.parallel.engine`), and for each lane a thread that asks it, so that a slow environment
holds up no other lane. What arrives while a lane is busy, or together, goes to the engine as one call.
Time-outs, recovery, quarantine, journals and failure capsules are the engine's. Members of a group (same tag and seed)
share a lane, as far as that leaves the lanes even, so that a group is reset once and copied.

``es_manager.use_multiprocessing: false`` leaves out the lanes; types in ``sequential_env_types`` live at *home*, in the
service's own process. ``auto`` means lanes here: the round trip to one is short beside a model's answer.

The class knows nothing of Ray: :mod:`ragen.agent_loop.session` makes it an actor.
"""

from __future__ import annotations

import asyncio
import copy
import itertools
import logging
import math
import secrets
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

from ragen.errors import InputError, SessionLostError
from ragen.llm_agent.config.environments import EnvEntry, read_config
from ragen.parallel.engine import EnvEngine
from ragen.parallel.env_record import EnvFailed
from ragen.parallel.episode.spec import EnvSpec
from ragen.parallel.episode.turn import Observation, Turn, TurnResult, failed_turn
from ragen.parallel.stats import LaneStats

log = logging.getLogger(__name__)

GATHER = 0.001  # seconds that a first request waits for others to come along
IDLE = 3600.0  # seconds after which an environment that nobody asked for is closed
_ENGINE_SECTIONS = ("es_manager", "custom_envs")


class SessionKey(NamedTuple):
    """What an open environment is asked for with; no two environments ever have the same one.

    Attributes:
        service: Drawn anew by each service, so that one that was started again knows no key of the one before it, which
            had given out the same numbers.
        number: The environment's, within its service.
    """

    service: str
    number: int


class Opened(NamedTuple):
    """A trajectory's environment, just reset.

    Attributes:
        session: Key to ask for it with.
        observation: What it shows.
        max_actions: Actions that the episode may execute.
    """

    session: SessionKey
    observation: Observation
    max_actions: int


@dataclass
class ServiceStats:
    """What a service has done.

    Attributes:
        sessions: Environments that are open now.
        opened: Environments opened so far.
        turns: Turns played so far.
        batches: Calls of the engine that turns went in.
        largest: Most turns that went in one call.
        lanes: What each home has done, see :class:`~ragen.parallel.stats.LaneStats`.
    """

    sessions: int = 0
    opened: int = 0
    turns: int = 0
    batches: int = 0
    largest: int = 0
    lanes: list[LaneStats] = field(default_factory=list)


class EnvService:
    """Opens, plays and closes environments, many at a time; all methods are coroutines of one event loop."""

    def __init__(self, config: Mapping[str, Any]) -> None:
        """Read the settings; workers start with the first environment.

        Args:
            config: RAGEN's whole configuration as plain dicts, of which ``es_manager`` and ``custom_envs`` are read.

        Raises:
            ConfigError: A key of ``es_manager`` has a value that cannot work.
        """
        self._blueprints = _Blueprints(config)
        self._settings = read_config(config, "train")
        self._name = secrets.token_hex(8)
        self._sessions: dict[SessionKey, _Session] = {}
        self._numbers = itertools.count()
        self._counts = ServiceStats()
        self._swept = time.monotonic()
        settings = replace(self._settings.engine, use_lanes=False)  # environments are put into lanes one by one
        self._engine = EnvEngine([], settings, on_failure=self._settings.keep_failure())
        self._home = self._queue(None)
        self._queues: list[_Queue] = []

    async def open(self, tag: str, seed: int, mode: str = "train") -> Opened:
        """Build and reset an environment.

        Args:
            tag: Key of ``custom_envs``.
            seed: Seed of its episode.
            mode: ``"train"`` or ``"val"``, handed to the environment.

        Raises:
            ConfigError: The tag's entry cannot work.
            EnvError: The environment could not be built.
        """
        entry = self._blueprints.entry(tag)
        await self._sweep()
        key = SessionKey(self._name, next(self._numbers))
        queue = self._queue_for(entry.spec, (tag, seed, mode))
        session = self._sessions[key] = _Session(key.number, queue, (tag, seed, mode))
        self._counts.opened += 1
        spec = replace(entry.spec, env_id=key.number, group_id=self._blueprints.number(tag, mode))
        try:
            observation = await queue.ask("open", (spec, seed, mode))
        except BaseException:
            await self.close(key)
            raise
        session.touch()
        return Opened(key, observation, entry.max_actions_per_traj)

    async def play(self, session: SessionKey, turn: int, actions: Sequence[str], actions_left: int) -> TurnResult:
        """Play one turn.

        Args:
            session: Key of an open environment.
            turn: Index of the turn within its episode, from 0.
            actions: What the model asked for.
            actions_left: Actions that the episode still allows.

        Returns:
            The result. Of an environment that failed for good, one that ends the game, with ``info["env_error"]``.

        Raises:
            SessionLostError: There is no such environment: the service is another one than the one that opened it.
            InputError: The environment is at its turn, or this is not its next turn.
            RagenError: The environment failed with ``on_env_failure: raise``.
        """
        open_session = self._session(session)
        open_session.begin(turn)
        try:
            item = (open_session.number, Turn(tuple(actions), actions_left))
            result = await open_session.queue.ask("play", item)
        finally:
            open_session.end()
        open_session.turn += 1
        return result

    async def close(self, session: SessionKey) -> None:
        """Close an environment; one that is not open is passed over."""
        closed = self._sessions.pop(session, None)
        if closed is not None:
            await closed.queue.ask("close", closed.number)

    async def stats(self) -> ServiceStats:
        """What this service has done so far."""
        return replace(self._counts, sessions=len(self._sessions), lanes=self._engine.stats())

    async def shut_down(self) -> None:
        """Close all environments and end the lanes."""
        self._sessions.clear()
        for queue in [self._home, *self._queues]:
            await queue.shut_down()
        await asyncio.get_running_loop().run_in_executor(None, self._engine.close)

    def _session(self, key: SessionKey) -> _Session:
        if key not in self._sessions:
            raise SessionLostError(f"environment {key.number} is not open in this service; open it and play it again.")
        return self._sessions[key]

    def _queue(self, lane: int | None) -> _Queue:
        raises = self._settings.engine.on_env_failure == "raise"
        return _Queue(self._engine, lane, self._counts, raises)

    def _queue_for(self, spec: EnvSpec, group: tuple[str, int, str]) -> _Queue:
        """The lane where a group's members are, until it has its even share of them; then the emptiest one."""
        settings = self._settings
        if settings.engine.use_lanes is False or spec.env_type in settings.engine.sequential_env_types:
            return self._home
        if not self._queues:
            self._queues = [self._queue(index) for index in range(settings.engine.workers)]
        share = math.ceil(settings.env_groups * settings.group_size / len(self._queues))
        loads = Counter(session.queue for session in self._sessions.values())
        members = Counter(session.queue for session in self._sessions.values() if session.group == group)
        begun = [queue for queue in members if members[queue] < share and queue is not self._home]
        return begun[-1] if begun else min(self._queues, key=lambda queue: loads[queue])

    async def _sweep(self) -> None:
        """Close what nobody asks for any more, such as the environments of an agent loop that was killed."""
        now = time.monotonic()
        if now - self._swept < IDLE / 10:
            return
        self._swept = now
        for key in [key for key, session in self._sessions.items() if session.is_idle(now)]:
            log.warning("environment %d was not asked for in %g s; it is closed", key.number, IDLE)
            await self.close(key)


@dataclass
class _Session:
    """One open environment."""

    number: int
    queue: _Queue
    group: tuple[str, int, str]
    turn: int = 0
    is_at_its_turn: bool = False
    since: float = field(default_factory=time.monotonic)

    def begin(self, turn: int) -> None:
        if self.is_at_its_turn:
            raise InputError(f"environment {self.number} was asked for a turn while it is at one.")
        if turn != self.turn:
            raise InputError(f"environment {self.number} was asked for turn {turn}; its next one is {self.turn}.")
        self.is_at_its_turn = True

    def end(self) -> None:
        self.is_at_its_turn = False
        self.touch()

    def touch(self) -> None:
        self.since = time.monotonic()

    def is_idle(self, now: float) -> bool:
        return not self.is_at_its_turn and now - self.since > IDLE


class _Blueprints:
    """What builds an environment of each tag, read when a tag is first asked for."""

    def __init__(self, config: Mapping[str, Any]) -> None:
        self._config: dict[str, Any] = {name: config.get(name) for name in _ENGINE_SECTIONS}
        self._entries: dict[str, EnvEntry] = {}
        self._group_numbers: dict[tuple[str, str], int] = {}

    def entry(self, tag: str) -> EnvEntry:
        """The tag's entry, with a configuration object of its own each time."""
        if tag not in self._entries:
            part = {"env_groups": 1, "group_size": 1, "env_configs": {"tags": [tag], "n_groups": [1]}}
            es_manager = {**self._config["es_manager"], "train": part}
            self._entries[tag] = read_config({**self._config, "es_manager": es_manager}, "train").entries[0]
        entry = self._entries[tag]
        return replace(entry, spec=replace(entry.spec, config=copy.deepcopy(entry.spec.config)))

    def number(self, tag: str, mode: str) -> int:
        """What tells the groups of this tag and mode from others of the same seed."""
        return self._group_numbers.setdefault((tag, mode), len(self._group_numbers))


class _Job(NamedTuple):
    verb: str
    item: Any
    future: asyncio.Future[Any]


class _Queue:
    """The requests that wait for one lane, and the thread that asks the engine."""

    def __init__(self, engine: EnvEngine, lane: int | None, counts: ServiceStats, raises: bool) -> None:
        self._engine = engine
        self._lane = lane
        self._counts = counts
        self._raises = raises
        name = "ragen home" if lane is None else f"ragen lane {lane}"
        self._thread = ThreadPoolExecutor(1, thread_name_prefix=name)
        self._waiting: list[_Job] = []
        self._server: asyncio.Task[None] | None = None

    async def ask(self, verb: str, item: Any) -> Any:
        """Do something in the next batch; what comes of it."""
        loop = asyncio.get_running_loop()
        future = loop.create_future()
        self._waiting.append(_Job(verb, item, future))
        if self._server is None or self._server.done():
            self._server = loop.create_task(self._serve())
        return await future

    async def shut_down(self) -> None:
        """End the thread, after what it is at."""
        await asyncio.get_running_loop().run_in_executor(None, self._thread.shutdown)

    async def _serve(self) -> None:
        loop = asyncio.get_running_loop()
        await asyncio.sleep(GATHER)
        while self._waiting:
            batch, self._waiting = self._waiting, []
            asked = [(job.verb, job.item) for job in batch]
            _settle(batch, await loop.run_in_executor(self._thread, self._work, asked))

    def _work(self, batch: list[tuple[str, Any]]) -> list[Any]:
        """In the shard's thread: what is asked, one engine call for each kind; exceptions are answers like others."""
        answers: list[Any] = [None] * len(batch)
        for verb, work in (("open", self._open), ("play", self._play), ("close", self._close)):
            places = [place for place, (asked, _) in enumerate(batch) if asked == verb]
            if places:
                for place, answer in zip(places, _caught(work, [batch[place][1] for place in places]), strict=True):
                    answers[place] = answer
        return answers

    def _close(self, numbers: list[int]) -> list[Any]:
        self._engine.remove(numbers)
        return [None] * len(numbers)

    def _open(self, asked: list[tuple[EnvSpec, int, str]]) -> list[Any]:
        observations: dict[int, Any] = {}
        for spec, _, _ in asked:
            self._engine.add(spec, self._lane)
        for mode in {mode for _, _, mode in asked}:
            seeds = {spec.env_id: seed for spec, seed, its_mode in asked if its_mode == mode}
            observations |= self._engine.reset(seeds, {"mode": mode})
        return [self._shown(observations[spec.env_id]) for spec, _, _ in asked]

    def _shown(self, observation: Any) -> Any:
        """What a just reset environment shows; of one that failed nothing, or why, if it cannot be built."""
        if not isinstance(observation, EnvFailed):
            return observation
        return observation.error if self._raises or observation.phase == "build" else ""

    def _play(self, items: list[tuple[int, Turn]]) -> list[Any]:
        self._counts.turns += len(items)
        self._counts.batches += 1
        self._counts.largest = max(self._counts.largest, len(items))
        results = self._engine.play(dict(items))
        return [self._result(env_id, results[env_id]) for env_id, _ in items]

    def _result(self, env_id: int, result: TurnResult | EnvFailed) -> Any:
        if not isinstance(result, EnvFailed):
            return result
        return result.error if self._raises else failed_turn(result.text, self._engine.records[env_id].observation)


def _caught(work: Callable[[list[Any]], list[Any]], items: list[Any]) -> list[Any]:
    """What comes of a batch; an exception stands for every item."""
    try:
        return work(items)
    except Exception as error:
        return [error] * len(items)


def _settle(batch: Sequence[_Job], answers: Sequence[Any]) -> None:
    """Hand each job its answer, unless nobody waits for it any more."""
    for job, answer in zip(batch, answers, strict=True):
        if job.future.done():
            continue
        if isinstance(answer, BaseException):
            job.future.set_exception(answer)
        else:
            job.future.set_result(answer)
