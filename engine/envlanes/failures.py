"""Carries out the decisions of :mod:`envlanes.recovery`, and logs them."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from envlanes import recovery
from envlanes.environments import NOT_LOADED, EnvFailed, Environments, EnvRecord
from envlanes.episode.journal import Divergence, EpisodeJournal
from envlanes.episode.outcome import LOADING, Raised, TimedOut
from envlanes.episode.spec import EnvSpec
from envlanes.errors import (
    DivergenceError,
    EnvError,
    EnvLanesError,
    LaneDiedError,
    LaneTimeoutError,
    ReturnError,
    add_note,
)
from envlanes.homes import Homes
from envlanes.lanes.failure import Cause, LaneFailure
from envlanes.lanes.lane import Lane
from envlanes.lanes.orders import Call, Fork, Order, Play, Rebuild, Reset
from envlanes.recovery import Decision, Facts, LaneThen, Then, Trouble
from envlanes.repeated_messages import RepeatedMessageFilter
from envlanes.settings import Settings
from envlanes.stats import Stats

_ONCE_MORE = "Retrying on a rebuilt environment."
_IN_MAIN = "The main process plays it once more, and keeps it if that succeeds."


@dataclass(frozen=True)
class Failure:
    """A failure of an environment, as passed to ``on_failure`` for a crash report.

    Attributes:
        spec: The environment.
        journal: Its episode so far; the one before, if a reset was asked.
        asked: The request: a class of :mod:`envlanes.lanes.orders`.
        item: The item of that order.
        phase: The operation that failed.
        text: The failure in words.
        error: The error to raise for it; the environment's own exception is its cause, its notes are stacks.
        timeout: Its deadline in seconds.
    """

    spec: EnvSpec
    journal: EpisodeJournal
    asked: type[Order]
    item: Any
    phase: str
    text: str
    error: EnvLanesError
    timeout: float


@dataclass(frozen=True)
class Asked:
    """The request of one call.

    Attributes:
        kind: The class of the order.
        items: The order's items by env_id.
        timeout: Seconds that each may take.
        reset_timeout: Seconds that each step of a replay may take.
    """

    kind: type[Reset | Play | Call | Fork]
    items: Mapping[int, Any]
    timeout: float
    reset_timeout: float

    def timeout_of(self, order: Order) -> float:
        """Seconds that each item of an order may take."""
        return self.reset_timeout if order.rebuilds else self.timeout

    def failure(self, record: EnvRecord, order: Order, text: str, error: EnvLanesError, phase: str = "") -> Failure:
        """The failure of an environment during an order; its phase is the order's by default."""
        journal, item, timeout = record.journal, self.items.get(record.env_id), self.timeout_of(order)
        return Failure(record.spec, journal, self.kind, item, phase or order.phase, text, error, timeout)


OnFailure = Callable[[Failure], str]


def say_nothing(_: Failure) -> str:
    """Ignore a failure."""
    return ""


class Failures:
    """The failures of one engine; called with the engine's lock held.

    Attributes:
        kills: The restarts of each lane that may come from outside.
        killed: Environments that are suspects only because of such a kill.
    """

    def __init__(
        self,
        settings: Settings,
        environments: Environments,
        homes: Homes,
        stats: Stats,
        messages: RepeatedMessageFilter,
        on_failure: OnFailure,
    ) -> None:
        self._settings, self._environments, self._homes = settings, environments, homes
        self._stats, self._messages, self._on_failure = stats, messages, on_failure
        self._restarts: dict[Lane, int] = defaultdict(int)
        self.kills: Counter[Lane] = Counter()
        self.killed: set[int] = set()
        self._doubted: dict[int, str] = {}  # what differed where a snapshot was loaded; the whole journal is next
        self.not_deterministic: dict[str, str] = {}  # tags whose replays differed, with their environments' types
        self.not_restored: dict[str, str] = {}  # tags whose `save` and `load` lost something, likewise

    def begin_episode(self) -> None:
        """Clear all failures, since all environments are about to be reset."""
        self._restarts.clear()
        self.kills.clear()

    def came_through(self, record: EnvRecord) -> None:
        """Take back one restart of the lane of an environment whose episode ended well."""
        self.killed.discard(record.env_id)
        if record.home is not None and record.failed is None and self._restarts[record.home]:
            self._restarts[record.home] -= 1

    def forgive_kills(self, records: Iterable[EnvRecord]) -> None:
        """Forget kills that may come from outside, of environments that have played a turn since and of their lanes.

        Such environments return from quarantine; those that failed in another way do so at their next reset.
        """
        for record in records:
            if record.home is not None and (kills := self.kills.pop(record.home, 0)):
                self._restarts[record.home] = max(0, self._restarts[record.home] - kills)
            if record.env_id in self.killed:
                self.killed.discard(record.env_id)
                self._homes.readmit([record])

    def admit(self, suspect: EnvRecord, asked: Collection[int], todo: Collection[int]) -> bool:
        """Give a suspect a lane of its own; returns whether there was room."""
        quarantine, pool = self._homes.quarantine, self._homes.pool
        if quarantine.admit(suspect, pool):
            return True
        quarantine.make_room((self._environments.in_use - set(asked)) | set(todo), pool)
        return quarantine.admit(suspect, pool)

    def sum_up(self) -> None:
        """At the end of a call: log the counts of repeated failures that have grown much."""
        self._messages.sum_up()

    # Environments

    def of_env(self, record: EnvRecord, value: Raised | Divergence, order: Order, asked: Asked) -> None:
        """Handle an exception or a divergence of an environment."""
        if isinstance(value, Divergence):
            what = f"does not replay: {value.describe()}"
        else:
            what = f"failed: {value.text} (while: {value.phase})"
        if self._goes_back(record, what):
            return
        if isinstance(value, Divergence):
            self._diverged(record, value, order, asked)
        elif isinstance(value, TimedOut):
            late = LaneTimeoutError(f"{record.describe()} {value.text} in the main process.")
            add_note(late, value.trace)
            self._decide(record, Trouble.OVERDUE, asked.failure(record, order, value.text, late))
        else:
            if value.phase == LOADING:
                self.not_restored[record.spec.tag] = record.spec.env_type
            raised = EnvError(f"{record.describe()} raised {value.text} (while: {value.phase}).")
            raised.__cause__ = value.exception()
            record.may_end_main |= isinstance(raised.__cause__, KeyboardInterrupt)  # there, it would be Ctrl-C
            trouble = Trouble.CANNOT_TRAVEL if value.phase in ("load", "send", "receive") else Trouble.RAISED
            self._decide(record, trouble, asked.failure(record, order, value.text, raised, value.phase))

    def lost(self, record: EnvRecord, asked: Asked) -> None:
        """Fail an environment whose state is gone and that declares that it cannot be replayed."""
        text = "its state was lost, and its class declares that it cannot be replayed"
        if self._goes_back(record, f"failed: {text}"):
            return
        error = EnvError(f"{record.describe()}: {text}.")
        self._decide(record, Trouble.LOST, asked.failure(record, Rebuild((), ()), text, error))

    def rebuilt(self, record: EnvRecord, journal: EpisodeJournal) -> None:
        """Take in which snapshot an environment was rebuilt from, or that its whole journal could be replayed."""
        if journal.snapshots:
            record.restored = journal.left_out if record.restored is None else record.restored
            return
        record.restored = None
        if text := self._doubted.pop(record.env_id, ""):
            story = f"{text}; replayed from its seed, it went as recorded: its save() or load() loses something"
            self._not_restored_as(record, story)

    def not_loaded(self, record: EnvRecord, doubt: str) -> None:
        """Log that an environment was reset, since ``load`` did not bring it to the reset of its group's first one."""
        story = f"was not restored by load() of its group's reset: {doubt}; so each member of a group is reset"
        self._not_restored_as(record, story)

    def _not_restored_as(self, record: EnvRecord, story: str) -> None:
        self.not_restored[record.spec.tag] = record.spec.env_type
        self._messages.say(f"{record.spec.describe()} {story}", (record.spec.tag, "not restored"))

    def _diverged(self, record: EnvRecord, divergence: Divergence, order: Order, asked: Asked) -> None:
        if divergence.snapshot is None:
            text = self._differs_from_its_beginning(record, divergence)
        else:
            text = f"does not replay from load() of its snapshot of {_moment(divergence.snapshot)}"
            self._doubted[record.env_id] = text = f"{text}: {divergence.describe()}"
        phase = "" if divergence.snapshot is None else LOADING
        error = DivergenceError(f"{record.describe()} {text}.")
        self._decide(record, Trouble.DIVERGED, asked.failure(record, order, text, error, phase))
        if record.failed is not None:
            self._doubted.pop(record.env_id, None)

    def _differs_from_its_beginning(self, record: EnvRecord, divergence: Divergence) -> str:
        """Log why a replay of the whole journal may have differed; returns what differed."""
        self._doubted.pop(record.env_id, None)
        spec, seed = record.spec, record.journal.seed
        text = f"does not replay: {divergence.describe()}"
        story = f"replayed from seed {seed} and its actions, {text}"
        if record.restored is not None:
            where = f"it went on from a snapshot of {_moment(record.restored)}"
            story = f"is not deterministic, or its save() or load() loses something: {where}, and {story}"
            self._not_restored_as(record, story)
            return text
        if seed is None:
            cure = "reset it with a seed, or declare `save` and `load` in its class"
            story = f"began its episode without a seed, with a generator that cannot be restored, and {text}: {cure}"
            text = f"{text} (its episode began without a seed: {cure})"
        else:
            story = f"is not deterministic: {story}"
            self.not_deterministic[spec.tag] = spec.env_type
        self._messages.say(f"{spec.describe()} {story}", (spec.tag, "diverged"))
        return text

    def _goes_back(self, record: EnvRecord, what: str) -> bool:
        """Return an environment that failed where it moved to; from main, others of its type do not move any more."""
        if record.before is None:
            return False
        stays = ""
        if record.before[0] is None:
            stays = ", and so do those of its type that are in the main process"
            in_main = [each for each in self._environments.records.values() if each.lane is None or each.before]
            self._bind([each for each in in_main if each.spec.env_type == record.spec.env_type], what)
        story = f"{record.describe()} stays where it is{stays}: where it was to move, it {what}."
        self._messages.say(story, (record.spec.tag, "moved"))
        self._homes.take_back(record)
        return True

    def _decide(self, record: EnvRecord, trouble: Trouble, failure: Failure, is_shared: bool = False) -> None:
        is_building = failure.phase == "build"
        in_main, may_end_main = record.lane is None, record.may_end_main
        facts = Facts(in_main, record.failures, record.kills, is_building, is_shared, may_end_main)
        decision = recovery.decide(trouble, facts, self._settings)
        record.in_sync = False
        self._log(trouble, failure, decision)
        if decision.counts:
            setattr(record, decision.counts, getattr(record, decision.counts) + 1)
        if decision.counts == "failures" and trouble in (Trouble.ENDED, Trouble.KILLED):
            record.may_end_main = True
        then = decision.then
        if then is Then.FAIL:
            record.failed = EnvFailed(failure.text, failure.error, failure.phase)
            if in_main:
                record.bound_to_main = ""  # it is not the worker's doing
            if record.is_suspect:
                self._homes.evict([record])
                record.is_suspect = False
        elif then is Then.QUARANTINE:
            if trouble is Trouble.RAISED and not record.is_suspect:
                self._homes.evict([record])  # it may hold a port, which the next one opens
            if trouble is not Trouble.KILLED:
                self.killed.discard(record.env_id)
            elif not record.is_suspect:
                self.killed.add(record.env_id)
            record.is_suspect = True
        elif then in (Then.MAIN, Then.STAY_IN_MAIN):
            if then is Then.STAY_IN_MAIN:
                self._bind([record], failure.text)
            self._homes.move_to_main([record])

    def _bind(self, records: Iterable[EnvRecord], why: str) -> None:
        """Have environments that do not work in workers played in the main process from now on."""
        for record in records:
            record.bound_to_main = record.bound_to_main or why

    def _log(self, trouble: Trouble, failure: Failure, decision: Decision) -> None:
        """Log what happened and what follows; a killed worker was logged already."""
        spec, error, what = failure.spec, failure.error, failure.text
        if trouble is Trouble.CANNOT_TRAVEL and decision.then is Then.STAY_IN_MAIN:
            story = f"{spec.describe()} does not work in a worker, so it stays in the main process: {what}"
            self._messages.say(story, (spec.tag, what))
            return
        if decision.counts == "kills":
            return
        error.args = (f"{error}{self._on_failure(failure)}",)
        if trouble is Trouble.DIVERGED:
            what = "does not replay"
        elif trouble in (Trouble.RAISED, Trouble.CANNOT_TRAVEL):
            what = f"{what} (while: {failure.phase})"
        cause = error.__cause__
        if decision.then is Then.FAIL:
            self._messages.warn(spec, what, "This ends the episode.", str(error), after=(_IN_MAIN, _ONCE_MORE))
        else:
            is_said = isinstance(cause, ReturnError) or (failure.phase == "build" and isinstance(cause, EnvLanesError))
            shown = None if is_said else cause  # its traceback only shows where it was noticed
            then = _IN_MAIN if decision.then is Then.STAY_IN_MAIN else _ONCE_MORE
            after = (_ONCE_MORE,) if then == _IN_MAIN else ()
            self._messages.warn(spec, what, then, str(error), shown, after)

    # Lanes

    def of_lane(self, lane: Lane, failure: LaneFailure, order: Order, asked: Asked) -> None:
        """Handle a lane that gave no reply, with or without an environment at work."""
        if failure.cause is Cause.REPLACED:
            return
        self._stats.count_restart(lane)
        blamed, is_shared = self._blamed(lane, failure, order)
        if not blamed:
            self._lane_lost(lane, failure)
            return
        first = self._environments.records[blamed[0]]
        story = f"{failure.describe()} at {first.spec.describe()}.{_indented(failure.stacks)}"
        is_retried = failure.may_come_from_outside and first.kills < self._settings.max_restarts
        then = _ONCE_MORE if is_retried else ""  # else a line on the environment says what follows
        self._messages.warn(first.spec, f"its worker {failure.what}", then, story)
        for env_id in blamed:
            self._worker_lost(self._environments.records[env_id], failure, order, asked, is_shared)
        if not failure.may_come_from_outside:
            # What ends its process at a turn must not do so in main; but others of its type have played there so far.
            env_ids = {env_id for index in range(len(order)) for env_id in order.envs_at(index)}
            for record in self._environments.of(sorted(env_ids.difference(blamed))):
                if record.spec.env_type == first.spec.env_type:
                    self._goes_back(record, f"failed: its worker {failure.what} at env {first.env_id}")

    def _blamed(self, lane: Lane, failure: LaneFailure, order: Order) -> tuple[list[int], bool]:
        """The environments at work, and whether several share the failure because their class was being loaded."""
        is_outside = failure.ending.is_shared and self._restarts[lane] < self._settings.max_restarts
        if lane in self._homes.quarantine and not is_outside:
            return order.envs_at(0)[:1], False
        if failure.index is None or not len(order):
            return [], False
        if failure.index < len(order):
            return order.envs_at(failure.index), isinstance(order, Rebuild) and order.is_load(failure.index)
        return (order.envs_at(0), False) if len(order) == 1 else ([], False)

    def _worker_lost(
        self, record: EnvRecord, failure: LaneFailure, order: Order, asked: Asked, is_shared: bool
    ) -> None:
        if failure.cause is Cause.TIMEOUT:
            text = f"timed out after {failure.seconds:g} s"
            error: EnvLanesError = LaneTimeoutError(f"{record.describe()} {text}: {failure.describe()}.")
        else:
            text = f"its process {failure.ending.describe()}"
            where = f"{failure.lane}, {failure.ending.where}" if failure.ending.where else failure.lane
            error = LaneDiedError(f"{record.describe()}: {text} ({where}).")
        is_retried = failure.may_come_from_outside and record.kills < self._settings.max_restarts
        if not order.plays and not is_retried and self._goes_back(record, f"failed: {text}"):
            return
        if failure.stacks:
            add_note(error, failure.stacks)
        self._decide(record, recovery.trouble_of(failure), asked.failure(record, order, text, error), is_shared)

    def _lane_lost(self, lane: Lane, failure: LaneFailure) -> None:
        self._restarts[lane] += 1
        self.kills[lane] += failure.may_come_from_outside
        then = recovery.decide_lane(failure, self._restarts[lane], self._settings)
        follows = " A new worker takes over." if then is LaneThen.RESTART else ""
        story = f"{failure.describe()}.{follows}{_indented(failure.stacks)}"
        self._messages.say(story, failure.what if failure.cause is Cause.START else None)
        if then is LaneThen.RESTART:
            return
        records = [record for record in self._environments.records.values() if record.home is lane]
        if then is LaneThen.QUARANTINE:
            text = f"{failure.describe()}; its {len(records)} environments now take turns in separate processes."
            self._messages.say(text)
            is_outside = self.kills[lane] == self._restarts[lane]
            for record in records:
                if not record.is_suspect:
                    record.is_suspect, record.in_sync, record.generation = True, False, NOT_LOADED
                    self.killed.update({record.env_id} if is_outside else ())
            return
        episodes = self._homes.leave_alone(lane)
        text = f"{failure.describe()}; its {len(records)} environments stay in the main process."
        self._messages.say(f"{text} The next attempt is in {episodes} episodes.", (failure.what, then))
        self._homes.move_to_main(records)


def _moment(turns: int) -> str:
    return f"turn {turns}" if turns else "the reset"


def _indented(stacks: str) -> str:
    return "".join(f"\n    {line}" for line in stacks.splitlines())
