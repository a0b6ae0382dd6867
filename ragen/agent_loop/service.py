"""The environment service: owns lanes with environments, and plays turns for its callers.

    agent loops (coroutines)                         service (one event loop)
    open / play / close  ------------------>  +----------------------------------+
                                              |  queue 0 -> thread -+            |
                                              |  queue 1 -> thread -+-> EnvSet -> lanes 0, 1, ...
                                              |  ...                |            |
                                              |  home    -> thread -+            |
                                              +----------------------------------+

There is one set of environments (:class:`~ragen.agent_loop.queues.ServedEnvs`), and one thread per lane that calls it,
so that a slow environment delays no other lane. Requests that arrive together, or while a lane is busy, are one call.
Time-outs, recovery, quarantine, journals and crash reports are the engine's. Members of a group (same tag and seed)
share a lane, if that keeps the lanes balanced, so that a group is reset once and copied.

``es_manager.use_multiprocessing: false`` disables lanes; types in ``sequential_env_types`` live at *home*, in the
service's own process. ``auto`` means lanes here, since a round trip is short compared to a model's answer.

The class is independent of Ray and of callers' processes: :mod:`ragen.agent_loop.ray_service` is one interface to it,
which also closes the environments of a caller that is gone (:meth:`EnvService.close_all_of`); an environment that was
not used for an hour is closed here.
"""

from __future__ import annotations

import asyncio
import copy
import itertools
import logging
import math
import secrets
import time
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

from ragen.agent_loop.queues import LaneQueue, ServedEnvs
from ragen.agent_loop.service_settings import ServiceSettings
from ragen.agent_loop.service_stats import ServiceStats
from ragen.errors import InputError, ServiceFullError, ServiceTimeoutError, SessionLostError
from ragen.llm_agent.config.environments import EnvEntry, read_config
from ragen.parallel.episode.spec import EnvSpec
from ragen.parallel.episode.turn import Observation, Turn, TurnResult
from ragen.settings import read

log = logging.getLogger(__name__)

IDLE = 3600.0  # seconds after which an unused environment is closed
Group = tuple[str, int, str]  # tag, seed and mode
_ENGINE_SECTIONS = ("es_manager", "custom_envs")


class SessionKey(NamedTuple):
    """The unique key of an open environment.

    Attributes:
        service: A random number of the service, so that a restarted service does not accept keys of its predecessor.
        number: The environment's number within its service.
    """

    service: str
    number: int


class Opened(NamedTuple):
    """A trajectory's environment after its reset.

    Attributes:
        session: Its key.
        observation: The first observation.
        max_actions: Maximum number of actions of the episode.
    """

    session: SessionKey
    observation: Observation
    max_actions: int


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
        self.limits = read(ServiceSettings, config)
        self._entries = _EnvEntries(config)
        self._settings = read_config(config, "train")
        self._name = secrets.token_hex(8)
        self._sessions: dict[SessionKey, _Session] = {}
        self._loads: Counter[LaneQueue] = Counter()
        self._members: defaultdict[Group, dict[LaneQueue, int]] = defaultdict(dict)
        self._numbers = itertools.count()
        self._counts = ServiceStats(self._name)
        self._swept = time.monotonic()
        self._envs = ServedEnvs(self._settings.engine, self._settings.keep_failure())
        self._home = LaneQueue(self._envs, None)
        self._queues: list[LaneQueue] = []

    async def open(
        self, tag: str, seed: int, mode: str = "train", *, caller: str | None = None, is_again: bool = False
    ) -> Opened:
        """Build and reset an environment.

        Args:
            tag: Key of ``custom_envs``.
            seed: Seed of its episode.
            mode: ``"train"`` or ``"val"``, passed to the environment.
            caller: Whose environment it is, for :meth:`close_all_of`.
            is_again: Whether it was open in a service that was lost; counted, and nothing else.

        Raises:
            ConfigError: The tag's entry is invalid.
            ServiceFullError: The maximum number of environments is open; nothing was built.
            ServiceTimeoutError: It was not opened in time, and was removed.
            EnvError: The environment could not be built.
        """
        entry = self._entries.entry(tag)
        await self._sweep()
        self._check_room(tag, seed)
        group = (tag, seed, mode)
        key = SessionKey(self._name, next(self._numbers))
        session = _Session(key.number, self._queue_for(entry.spec, group), group, caller)
        self._add(key, session)
        self._counts.opened += 1
        self._counts.rebuilt += is_again
        spec = replace(entry.spec, env_id=key.number, group_id=self._entries.number(tag, mode))
        try:
            observation = await session.queue.ask("open", (spec, seed, mode), self.limits.open_limit)
        except ServiceTimeoutError:
            self._forget(key)
            raise
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
            SessionLostError: There is no such environment: another service opened it, or the caller gave up its last
                turn, so that its state is unknown.
            InputError: The environment is playing a turn, or this is not its next turn.
            ServiceTimeoutError: The turn was not played in time, whether it was queued or started.
            RagenError: The environment failed with ``on_env_failure: raise``.
        """
        open_session = self._session(session)
        open_session.begin(turn)
        try:
            item = (open_session.number, Turn(tuple(actions), actions_left))
            result = await open_session.queue.ask("play", item, self.limits.play_limit)
        except (asyncio.CancelledError, ServiceTimeoutError):
            self._forget(session)
            raise
        finally:
            open_session.end()
        open_session.turn += 1
        return result

    async def close(self, session: SessionKey) -> float:
        """Close an environment; one that is not open is ignored.

        Returns:
            Seconds spent inside it, including building and resets but not queueing. 0 if not open.
        """
        closed = self._remove(session)
        if closed is None:
            return 0.0
        seconds: float = await closed.queue.ask("close", closed.number, self.limits.play_limit)
        return seconds

    def close_all_of(self, caller: str, was_lost: bool) -> int:
        """Close all environments of a caller; returns their number.

        Args:
            caller: The caller that opened them.
            was_lost: Whether the caller is gone without having left.
        """
        keys = [key for key, session in self._sessions.items() if session.caller == caller]
        for key in keys:
            self._forget(key)
        self._counts.callers_lost += was_lost
        self._counts.abandoned += len(keys)
        return len(keys)

    async def stats(self) -> ServiceStats:
        """What this service has done so far."""
        queues = [self._home, *self._queues]
        counts = replace(self._counts, sessions=len(self._sessions), lanes=self._envs.stats())
        for queue in queues:
            counts = counts.plus(replace(queue.counts, waiting=len(queue)))
        return counts

    async def shut_down(self) -> None:
        """Close all environments and end the lanes."""
        self._sessions.clear()
        for queue in [self._home, *self._queues]:
            await queue.shut_down(self.limits.step_timeout)
        await asyncio.get_running_loop().run_in_executor(None, self._envs.close)

    def _session(self, key: SessionKey) -> _Session:
        if key not in self._sessions:
            raise SessionLostError(f"environment {key.number} is not open in this service; open it and play it again.")
        return self._sessions[key]

    def _check_room(self, tag: str, seed: int) -> None:
        if len(self._sessions) >= self.limits.max_sessions:
            self._counts.refused += 1
            raise ServiceFullError(
                f"the environment of tag {tag!r} and seed {seed} was not opened: this service has "
                f"{len(self._sessions)} open, and agent_loop.max_sessions is {self.limits.max_sessions}. Close those "
                "that are over, or raise it."
            )

    def _add(self, key: SessionKey, session: _Session) -> None:
        self._sessions[key] = session
        self._loads[session.queue] += 1
        members = self._members[session.group]
        members[session.queue] = members.get(session.queue, 0) + 1

    def _remove(self, key: SessionKey) -> _Session | None:
        session = self._sessions.pop(key, None)
        if session is not None:
            self._loads[session.queue] -= 1
            members = self._members[session.group]
            members[session.queue] -= 1
            if not members[session.queue]:
                del members[session.queue]
            if not members:
                del self._members[session.group]
        return session

    def _forget(self, key: SessionKey) -> None:
        """Queue the closing of an environment."""
        session = self._remove(key)
        if session is not None:
            session.queue.post("close", session.number)

    def _queue_for(self, spec: EnvSpec, group: Group) -> LaneQueue:
        """The lane of a group's members until it has its share of them; then the emptiest one."""
        settings = self._settings
        if settings.engine.use_lanes is False or spec.env_type in settings.engine.sequential_env_types:
            return self._home
        if not self._queues:
            self._queues = [LaneQueue(self._envs, index) for index in range(settings.engine.workers)]
        share = math.ceil(settings.env_groups * settings.group_size / len(self._queues))
        members = self._members.get(group, {})
        begun = [queue for queue, count in members.items() if count < share]
        return begun[-1] if begun else min(self._queues, key=lambda queue: self._loads[queue])

    async def _sweep(self) -> None:
        """Close unused environments of live callers."""
        now = time.monotonic()
        if now - self._swept < IDLE / 10:
            return
        self._swept = now
        for key in [key for key, session in self._sessions.items() if session.is_idle(now)]:
            log.warning("environment %d was not asked for in %g s; it is closed", key.number, IDLE)
            self._counts.abandoned += 1
            self._forget(key)


@dataclass
class _Session:
    """One open environment."""

    number: int
    queue: LaneQueue
    group: Group
    caller: str | None = None
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


class _EnvEntries:
    """The entry of each tag, read on first use."""

    def __init__(self, config: Mapping[str, Any]) -> None:
        self._config: dict[str, Any] = {name: config.get(name) for name in _ENGINE_SECTIONS}
        self._entries: dict[str, EnvEntry] = {}
        self._group_numbers: dict[tuple[str, str], int] = {}

    def entry(self, tag: str) -> EnvEntry:
        """The tag's entry, with a new configuration object each time."""
        if tag not in self._entries:
            part = {"env_groups": 1, "group_size": 1, "env_configs": {"tags": [tag], "n_groups": [1]}}
            es_manager = {**self._config["es_manager"], "train": part}
            self._entries[tag] = read_config({**self._config, "es_manager": es_manager}, "train").entries[0]
        entry = self._entries[tag]
        return replace(entry, spec=replace(entry.spec, config=copy.deepcopy(entry.spec.config)))

    def number(self, tag: str, mode: str) -> int:
        """A number that distinguishes groups of this tag and mode from others with the same seed."""
        return self._group_numbers.setdefault((tag, mode), len(self._group_numbers))
