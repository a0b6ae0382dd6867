"""Carries out the decisions of :mod:`envlanes.recovery`, and logs them."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

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
    without_values,
)
from envlanes.placement import Placement
from envlanes.recovery import Action, Facts, Trouble, decide, decide_worker
from envlanes.stats import QUARANTINE, Stats
from envlanes.workers.failure import Cause, WorkerFailure
from envlanes.workers.orders import Order, Rebuild
from envlanes.workers.worker import Worker

_FOLLOWS = {
    Action.FAIL: "This ends the episode.",
    Action.STAY_IN_MAIN: "The main process tries it again, and keeps the environment if that succeeds.",
}


@dataclass(frozen=True)
class Failure:
    """A failure of an environment, as passed to ``on_failure`` for a crash report.

    Attributes:
        spec: The environment.
        journal: Its episode so far; the one before, if a reset was requested.
        kind: The request: a class of :mod:`envlanes.workers.orders`.
        item: The item of that order.
        phase: The operation that failed.
        text: The failure in words.
        error: The error to raise for it; the environment's own exception is its cause, its notes are stacks.
        timeout: Its deadline in seconds.
    """

    spec: EnvSpec
    journal: EpisodeJournal
    kind: type[Order]
    item: Any
    phase: str
    text: str
    error: EnvLanesError
    timeout: float


OnFailure = Callable[[Failure], str]


class Requested(NamedTuple):
    """The request of one call of the engine.

    Attributes:
        kind: The class of the order.
        items: The order's items by env_id.
        timeout: Seconds that each may take.
        reset_timeout: Seconds that each step of a replay may take.
    """

    kind: type[Order]
    items: Mapping[int, Any]
    timeout: float
    reset_timeout: float

    def timeout_of(self, order: Order) -> float:
        """Seconds that each item of an order may take, which carries out the request or comes before it."""
        return self.reset_timeout if order.rebuilds else self.timeout


def ignore(_: Failure) -> str:
    """Ignore a failure."""
    return ""


class Failures:
    """The failures of one engine; called with the engine's lock held.

    Attributes:
        has_kills: Whether workers were killed, perhaps from outside, and no turn has forgiven it.
        not_deterministic: Tags whose replays differed, with their environments' types.
        not_restored: Tags whose ``save`` and ``load`` lost something, likewise.
    """

    def __init__(
        self, environments: Environments, placement: Placement, stats: Stats, on_failure: OnFailure = ignore
    ) -> None:
        self.environments, self.placement, self.stats = environments, placement, stats
        self._settings, self._on_failure = environments.settings, on_failure
        # The processes that each worker lost in this episode: whether each may have been killed from outside.
        self._losses: dict[Worker | None, list[bool]] = defaultdict(list)
        self.has_kills = False
        self.not_deterministic: dict[str, str] = {}
        self.not_restored: dict[str, str] = {}

    def begin_episodes(self, records: Collection[EnvRecord], reseeded: Collection[int]) -> None:
        """Forget the failures of environments that are about to be reset, and what their workers have lost."""
        # If episodes begin one by one, a worker's count begins anew with each of them: counted forever, a worker
        # that loses a process a day would send its environments to quarantine for good.
        for record in records:
            self._losses.pop(record.home, None)
            record.forget_failures()
        self.placement.readmit(records, reseeded)

    def forgive_kills(self, env_ids: Collection[int]) -> None:
        """Forget kills that may come from outside, of environments that have played a turn since and of their workers.

        Such environments return from quarantine; those that failed in another way do so at their next reset.
        """
        # Something that kills workers at random, such as the kernel when memory is short, would otherwise bring one
        # after the other of a long episode's environments into quarantine, where they are rebuilt for each turn.
        for record in self.environments.of(env_ids):
            if record.in_sync:
                self._losses[record.home] = [is_kill for is_kill in self._losses[record.home] if not is_kill]
                self.placement.readmit([record] if record.suspicion == "killed" else ())
        victims = (record.suspicion == "killed" for record in self.environments.records.values())
        self.has_kills = any(map(any, self._losses.values())) or any(victims)

    # Environments

    def handle_env(self, record: EnvRecord, value: Raised | Divergence, order: Order, requested: Requested) -> None:
        """Handle an exception or a divergence of an environment."""
        what, phase, where = "", "", record.describe()
        error: EnvLanesError
        if isinstance(value, Divergence):
            if self._undo_move(record, f"does not replay: {value.describe()}"):
                return
            trouble, text = Trouble.DIVERGED, self._diverged(record, value)
            error, phase = DivergenceError(f"{where} {text}."), "" if value.snapshot is None else LOADING
        else:
            trouble, text, what = Trouble.RAISED, value.text, f"{value.text} (during {value.phase})"
            if self._undo_move(record, f"failed: {what}"):
                return
            if isinstance(value, TimedOut):
                error = LaneTimeoutError(f"{where} {text} in the main process.")
                error.add_note(value.trace)
            else:
                error, phase = EnvError(f"{where} raised {what}."), value.phase
                error.__cause__ = value.exception()
                record.may_end_main |= isinstance(error.__cause__, KeyboardInterrupt)  # there, it would be Ctrl-C
                if phase in ("load", "send", "receive"):
                    trouble = Trouble.CANNOT_TRAVEL
                elif phase == LOADING:
                    self.not_restored[record.spec.tag] = record.spec.env_type
        self._decide(record, trouble, order, requested, text, error, phase)

    def handle_lost(self, record: EnvRecord, requested: Requested) -> None:
        """Fail an environment whose state is gone and that declares that it cannot be replayed."""
        text = "its state was lost, and its class declares that it cannot be replayed"
        if not self._undo_move(record, f"failed: {text}"):
            error = EnvError(f"{record.describe()}: {text}.")
            self._decide(record, Trouble.LOST, Rebuild((), ()), requested, text, error)

    def note_rebuilt(self, record: EnvRecord, journal: EpisodeJournal) -> None:
        """Take in which snapshot an environment was rebuilt from, or that its whole journal could be replayed."""
        if journal.snapshots:
            record.restored = journal.left_out if record.restored is None else record.restored
            return
        doubt, record.doubt, record.restored = record.doubt, "", None
        if doubt:
            self.warn_not_restored(record, f"{doubt}; replayed from its seed, it went as recorded")

    def warn_not_restored(self, record: EnvRecord, story: str) -> None:
        """Log that ``save`` or ``load`` of an environment's class loses something."""
        self.not_restored[record.spec.tag] = record.spec.env_type
        text = f"{record.spec.describe()} {story}: its save() or load() loses something"
        self.environments.warn(text, (record.spec.tag, "not restored"))

    def _diverged(self, record: EnvRecord, divergence: Divergence) -> str:
        """Log why a replay may have differed; returns what differed."""
        spec, seed, text = record.spec, record.journal.seed, f"does not replay: {divergence.describe()}"
        record.doubt = ""
        if divergence.snapshot is not None:
            moment = _moment(divergence.snapshot)
            record.doubt = f"does not replay from load() of its snapshot of {moment}: {divergence.describe()}"
            return record.doubt
        if record.restored is not None:
            story = f"went on from a snapshot of {_moment(record.restored)}, and {text}; it is not deterministic, or"
            self.warn_not_restored(record, story)
        elif seed is None:
            cure = "reset it with a seed, or declare `save` and `load` in its class"
            text = f"{text} (its episode began without a seed: {cure})"
        else:
            self.not_deterministic[spec.tag] = spec.env_type
            story = f"is not deterministic: replayed from seed {seed} and its actions, it {text}"
            self.environments.warn(f"{spec.describe()} {story}", (spec.tag, "diverged"))
        return text

    def _undo_move(self, record: EnvRecord, what: str) -> bool:
        """Return an environment that failed where it moved to; from main, others of its type do not move any more."""
        if record.before is None:
            return False
        if record.before[0] is None:
            # Each would fail there like this one, and be rebuilt twice for it: `auto` would cost what it should save.
            for each in self.environments.records.values():
                is_in_main = each.worker is None or each.before
                if is_in_main and each.spec.env_type == record.spec.env_type:
                    each.bound_to_main = each.bound_to_main or what
        story = f"{record.describe()} stays where it is, with those of its type: where it was to move, it {what}."
        self.environments.warn(story, (record.spec.tag, "moved"))
        self.placement.undo_move(record)
        return True

    def _decide(
        self,
        record: EnvRecord,
        trouble: Trouble,
        order: Order,
        requested: Requested,
        text: str,
        error: EnvLanesError,
        phase: str = "",
        is_shared: bool = False,
    ) -> None:
        """Decide about an environment that failed at an order, log it, and carry it out."""
        spec, phase, in_main = record.spec, phase or order.phase, record.worker is None
        facts = Facts(in_main, record.failures, record.kills, is_shared, record.may_end_main)
        action, counter = decide(trouble, facts, self._settings)
        stays, what = action is Action.STAY_IN_MAIN, without_values(text)
        if trouble is Trouble.CANNOT_TRAVEL and stays:
            story = f"{spec.describe()} does not work in a worker, so it stays in the main process: {text}"
            self.environments.warn(story, (spec.tag, what))
        else:
            if counter != "kills":  # a kill from outside is not the environment's failure yet
                item, timeout = requested.items.get(record.env_id), requested.timeout_of(order)
                failure = Failure(spec, record.journal, requested.kind, item, phase, text, error, timeout)
                error.args = (f"{error}{self._on_failure(failure)}",)
            kind = (spec.tag, trouble if trouble is Trouble.DIVERGED else what, phase, action)
            follows = _FOLLOWS.get(action, "Retrying on a rebuilt environment.")
            story = "\n".join([f"{error} {follows}", *getattr(error, "__notes__", ())])  # with stacks
            self.environments.warn(story, kind, None if record.failures else error.__cause__)
        record.in_sync = False
        if counter:
            setattr(record, counter, getattr(record, counter) + 1)
        if counter == "failures" and trouble in (Trouble.ENDED, Trouble.KILLED):
            record.may_end_main = True  # an exit, a crash or a hang in C would take main with it
        if action is Action.FAIL:
            record.failed = EnvFailed(text, error, phase)
            if in_main:
                record.bound_to_main = ""  # it fails here too: its next episode is tried in a worker again
            if record.suspicion:
                # Its own worker ends now: an environment that hangs would keep it, and its processor, until the reset.
                self.placement.evict([record])
                record.suspicion = ""
        elif action is Action.QUARANTINE:
            if trouble is Trouble.RAISED and not record.suspicion:
                self.placement.evict([record])  # it may hold a port, which the next one opens
            if trouble is not Trouble.KILLED:
                record.suspicion = "failed"
            elif not record.suspicion:  # a kill adds nothing to what is held against it
                record.suspicion, self.has_kills = "killed", True
        elif action is not Action.AGAIN:
            if stays:
                record.bound_to_main = record.bound_to_main or text
            self.placement.move_to_main([record])

    # Workers

    def handle_worker(self, worker: Worker, failure: WorkerFailure, order: Order, requested: Requested) -> None:
        """Handle a worker that gave no reply, with or without an environment at work."""
        if failure.cause is Cause.REPLACED:
            return  # another engine, or thread, has lost it and counted it; the round sends its request to the new one
        self.stats.restarts[worker.name] += 1
        blamed, is_shared = self._blamed(worker, failure, order)
        if not blamed:
            self._worker_lost(worker, failure)
            return
        is_outside = failure.may_come_from_outside
        first = self.environments.records[blamed[0]].spec
        for record in self.environments.of(blamed):
            error: EnvLanesError
            if failure.cause is Cause.TIMEOUT:
                text = f"timed out after {failure.seconds:g} s"
                error = LaneTimeoutError(f"{record.describe()} {text}: {failure.describe()}.")
            else:
                text = f"its process {failure.ending.describe()}"
                where = f"{failure.worker}, {failure.ending.where}" if failure.ending.where else failure.worker
                error = LaneDiedError(f"{record.describe()}: {text} ({where}).")
            # A kill from outside says nothing of the new home: it is tried again there, and does not go back.
            is_retried = is_outside and record.kills < self._settings.max_restarts
            if not order.plays and not is_retried and self._undo_move(record, f"failed: {text}"):
                continue
            if failure.stacks:
                error.add_note(failure.stacks)
            trouble = Trouble.KILLED if is_outside else Trouble.ENDED
            self._decide(record, trouble, order, requested, text, error, is_shared=is_shared)
        if not is_outside:
            # One that ends its process at a turn must not end main; but others of its type have played there so far.
            env_ids = {env_id for index in range(len(order)) for env_id in order.envs_at(index)}
            for record in self.environments.of(sorted(env_ids.difference(blamed))):
                if record.spec.env_type == first.env_type:
                    self._undo_move(record, f"failed: its worker {failure.what} at env {first.env_id}")

    def _blamed(self, worker: Worker, failure: WorkerFailure, order: Order) -> tuple[list[int], bool]:
        """The environments at work, and whether several share the failure because their class was being loaded."""
        # With its whole machine, a quarantine worker ends innocently; but not so often that the call never ends.
        is_outside = failure.ending.is_shared and len(self._losses.get(worker, ())) < self._settings.max_restarts
        if worker.name == QUARANTINE and not is_outside:
            return order.envs_at(0)[:1], False
        if failure.index is None or not len(order):
            return [], False
        if failure.index < len(order):
            return order.envs_at(failure.index), isinstance(order, Rebuild) and order.is_load(failure.index)
        return (order.envs_at(0), False) if len(order) == 1 else ([], False)  # it was through with all of several

    def _worker_lost(self, worker: Worker, failure: WorkerFailure) -> None:
        """Handle the end of a worker that no environment is blamed for."""
        warn, losses = self.environments.warn, self._losses[worker]
        losses.append(failure.may_come_from_outside)
        self.has_kills |= losses[-1]
        action = decide_worker(failure, len(losses), self._settings)
        follows = " A new worker takes over." if action is Action.AGAIN else ""
        kind = failure.what if failure.cause is Cause.START else None
        warn("\n".join(filter(None, [f"{failure.describe()}.{follows}", failure.stacks])), kind)
        records = [record for record in self.environments.records.values() if record.home is worker]
        if action is Action.QUARANTINE:
            warn(f"{failure.describe()}; its {len(records)} environments now take turns in separate processes.")
            for record in records:
                if not record.suspicion:
                    record.suspicion = "killed" if all(losses) else "failed"
                    record.in_sync, record.generation = False, NOT_LOADED
        elif action is Action.MAIN:
            text = f"{failure.describe()}; its {len(records)} environments stay in the main process."
            text += f" The next attempt is in {self.placement.leave_alone(worker)} episodes."
            warn(text, (failure.what, action))
            self.placement.move_to_main(records)


def _moment(turns: int) -> str:
    return f"turn {turns}" if turns else "the reset"
