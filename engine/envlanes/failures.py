"""Carries out the decisions of :mod:`envlanes.recovery`, and logs them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol

from envlanes.environments import EnvFailed, Environments, EnvRecord
from envlanes.episode.journal import Divergence, EpisodeJournal
from envlanes.episode.outcome import LOADING, Raised, TimedOut
from envlanes.episode.spec import EnvSpec
from envlanes.errors import DivergenceError, EnvError, EnvLanesError, LaneDiedError, LaneTimeoutError, without_values
from envlanes.placement import Placement
from envlanes.recovery import NO_TRIES, Action, Trouble, decide, decide_worker
from envlanes.stats import Stats
from envlanes.workers.orders import Order, Rebuild
from envlanes.workers.worker import Cause, Worker, WorkerFailure

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


class Finding(NamedTuple):
    """A failure of an environment, on which is yet to be decided.

    Attributes:
        trouble: The kind of trouble.
        text: The failure, in the same words wherever the environment lived.
        error: The error for it; its text follows the other one in the message.
        phase: The operation that failed; empty for that of the order.
        is_shared: Whether others of its tag share the failure: it happened as their class was loaded.
    """

    trouble: Trouble
    text: str
    error: EnvLanesError
    phase: str = ""
    is_shared: bool = False


class Requested(Protocol):
    """The request of one call of the engine, which :class:`.Round` is.

    Attributes:
        kind: The class of the order.
        items: The order's items by env_id.
        losses: Processes that workers have lost in this call, perhaps by kills from outside, or as they started.
        suspects: Environments that are played, in this call, alone: after the others of their worker, one by one.
    """

    kind: type[Order]
    items: Mapping[int, Any]
    losses: Counter[Worker]
    suspects: set[int]

    def timeout_of(self, order: Order) -> float:
        """Seconds that each item of an order may take, which carries out the request or comes before it."""


def ignore(_: Failure) -> str:
    """Ignore a failure."""
    return ""


class Failures:
    """The failures of one engine; called with the engine's lock held.

    Attributes:
        not_deterministic: Tags whose replays differed, with their environments' types.
        not_restored: Tags whose ``save`` and ``load`` lost something, likewise.
    """

    def __init__(
        self, environments: Environments, placement: Placement, stats: Stats, on_failure: OnFailure = ignore
    ) -> None:
        self.environments, self.placement, self.stats = environments, placement, stats
        self._settings, self._on_failure = environments.settings, on_failure
        self._losses = Counter[Worker | None]()  # that no kill from outside explains, in this episode
        self.not_deterministic: dict[str, str] = {}
        self.not_restored: dict[str, str] = {}

    def begin_episodes(self, records: Collection[EnvRecord]) -> None:
        """Forget the failures of environments that are about to be reset, and what their workers have lost."""
        # If episodes begin one by one, a worker's count begins anew with each of them: counted forever, a worker
        # that loses a process a day would have its environments played alone for good.
        for record in records:
            self._losses.pop(record.worker, None)
            record.tries, record.failed = NO_TRIES, None

    # Environments

    def handle_env(self, record: EnvRecord, value: Raised | Divergence, order: Order, requested: Requested) -> None:
        """Handle an exception or a divergence of an environment."""
        if isinstance(value, Divergence):
            finding = self._divergence(record, value)
        elif isinstance(value, TimedOut):
            finding = Finding(Trouble.RAISED, value.text, LaneTimeoutError(" in the main process"))
            finding.error.add_note(value.trace)
        else:
            cause, error = value.exception(), EnvError(f" (during {value.phase})")
            error.__cause__ = cause
            if isinstance(cause, KeyboardInterrupt):  # in main, it would be Ctrl-C
                record.tries = record.tries._replace(may_end_main=True)
            if value.phase == LOADING:
                self.not_restored[record.spec.tag] = record.spec.env_type
            travels = value.phase not in ("load", "send", "receive")
            finding = Finding(Trouble.RAISED if travels else Trouble.CANNOT_TRAVEL, value.text, error, value.phase)
        self._decide(record, finding, order, requested)

    def _divergence(self, record: EnvRecord, value: Divergence) -> Finding:
        spec, start, phase = record.spec, record.journal.start, ""
        text = f"does not replay: {value.describe()}"
        if value.snapshot is not None:
            self.not_restored[spec.tag], phase = spec.env_type, LOADING
            text = f"{text}, after load() of a snapshot of turn {value.snapshot}: save() or load() is incomplete"
        elif start is not None and start.seed is None:
            cure = "reset it with a seed, or declare `save` and `load` in its class"
            text = f"{text} (its episode began without a seed: {cure})"
        else:
            self.not_deterministic[spec.tag] = spec.env_type
            text = f"is not deterministic, and {text}"
        return Finding(Trouble.DIVERGED, text, DivergenceError(), phase)

    def handle_lost(self, record: EnvRecord, requested: Requested) -> None:
        """Fail an environment whose state is gone and that declares that it cannot be replayed."""
        text = "its state was lost, and its class declares that it cannot be replayed"
        self._decide(record, Finding(Trouble.LOST, text, EnvError()), Rebuild((), ()), requested)

    def _undo_move(self, record: EnvRecord, what: str) -> None:
        """Return an environment that failed where it moved to; from main, others of its type do not move any more."""
        assert record.before is not None
        if record.before[0] is None:
            # Each would fail there like this one, and be rebuilt twice for it: `auto` would cost what it should save.
            for each in self.environments.records.values():
                is_in_main = each.worker is None or each.before
                if is_in_main and each.spec.env_type == record.spec.env_type:
                    each.bound_to_main = each.bound_to_main or what
        story = f"{record.describe()} stays where it is, with those of its type: where it was to move: {what}."
        self.environments.warn(story, (record.spec.tag, "moved"))
        self.placement.undo_move(record)

    def _decide(self, record: EnvRecord, finding: Finding, order: Order, requested: Requested) -> None:
        """Decide about an environment that failed at an order, log it, and carry it out."""
        trouble, text, error, phase, is_shared = finding
        spec, phase, in_main, before = record.spec, phase or order.phase, record.worker is None, record.tries
        action, tries = decide(trouble, before, self._settings, in_main=in_main, shared=is_shared)
        is_killed, what = tries.kills > before.kills, without_values(text)
        # A kill from outside says nothing of the new home: it is tried again there. And one that ends its process at a
        # turn must not end main.
        ends_worker = trouble in (Trouble.ENDED, Trouble.KILLED)
        if record.before is not None and not is_killed and not (ends_worker and order.plays):
            self._undo_move(record, text)
            return
        record.tries = tries
        stays = action is Action.STAY_IN_MAIN
        if trouble is Trouble.CANNOT_TRAVEL and stays:
            story = f"{spec.describe()} does not work in a worker, so it stays in the main process: {text}"
            self.environments.warn(story, (spec.tag, what))
        else:
            error.args = (f"{record.describe()}: {text}{error}.",)
            if not is_killed:  # else it is not the environment's failure yet
                item, timeout = requested.items.get(record.env_id), requested.timeout_of(order)
                failure = Failure(spec, record.journal, requested.kind, item, phase, text, error, timeout)
                error.args = (f"{error}{self._on_failure(failure)}",)
            kind = (spec.tag, trouble if trouble is Trouble.DIVERGED else what, phase, action)
            follows = _FOLLOWS.get(action, "Retrying on a rebuilt environment.")
            story = "\n".join([f"{error} {follows}", *getattr(error, "__notes__", ())])  # with stacks
            self.environments.warn(story, kind, None if before.failures else error.__cause__)
        record.in_sync = False
        if action is Action.FAIL:
            record.failed = EnvFailed(text, error, phase)
            if in_main:
                record.bound_to_main = ""  # it fails here too: its next episode is tried in a worker again
        elif action is Action.ALONE:
            requested.suspects.add(record.env_id)
        elif action is not Action.AGAIN:
            if stays:
                record.bound_to_main = record.bound_to_main or text
            self.placement.place({record.env_id: None})

    # Workers

    def handle_worker(self, worker: Worker, failure: WorkerFailure, order: Order, requested: Requested) -> None:
        """Handle a worker that gave no reply, with or without an environment at work."""
        if failure.cause is Cause.REPLACED:
            return  # another engine, or thread, has lost it and counted it; the round sends its request to the new one
        self.stats.restarts[worker.name] += 1
        blamed = self._blamed(worker, failure, order, requested)
        if not blamed:
            self._worker_lost(worker, failure, requested)
            return
        trouble = Trouble.KILLED if failure.may_come_from_outside else Trouble.ENDED
        for record in self.environments.of(blamed):
            error: EnvLanesError
            if failure.cause is Cause.TIMEOUT:
                text = f"timed out after {failure.seconds:g} s"
                error = LaneTimeoutError(f": {failure.describe()}")
            else:
                text = f"its process {failure.ending.describe()}"
                error = LaneDiedError(f" ({', '.join(filter(None, [failure.worker, failure.ending.where]))})")
            if failure.stacks:
                error.add_note(failure.stacks)
            self._decide(record, Finding(trouble, text, error, is_shared=len(blamed) > 1), order, requested)
        if trouble is Trouble.ENDED:
            # Those of its type that moved with it go back: they have played there so far.
            first = self.environments.records[blamed[0]].spec
            env_ids = {env_id for index in range(len(order)) for env_id in order.envs_at(index)}
            for record in self.environments.of(sorted(env_ids.difference(blamed))):
                if record.spec.env_type == first.env_type and record.before is not None:
                    self._undo_move(record, f"its worker {failure.what} at env {first.env_id}")

    def _blamed(self, worker: Worker, failure: WorkerFailure, order: Order, requested: Requested) -> list[int]:
        """The environments at work: one, or all of a tag if their class was being loaded."""
        # A suspect is alone: it is to blame whenever its worker ends. But with its whole machine, that ends innocently;
        # not so often that the call never ends.
        is_innocent = failure.ending.is_shared and requested.losses[worker] < self._settings.max_restarts
        if failure.cause is not Cause.START and not is_innocent and requested.suspects.intersection(order.envs_at(0)):
            return order.envs_at(0)
        if failure.index is None or failure.index >= len(order) > 1:  # at none, or through with all of several
            return []
        return order.envs_at(min(failure.index, len(order) - 1))

    def _worker_lost(self, worker: Worker, failure: WorkerFailure, requested: Requested) -> None:
        """Handle the end of a worker that no environment is blamed for."""
        warn, is_start = self.environments.warn, failure.cause is Cause.START
        losses = requested.losses if is_start or failure.may_come_from_outside else self._losses
        losses[worker] += 1
        action = decide_worker(failure, losses[worker], self._settings)
        follows = " A new worker takes over." if action is Action.AGAIN else ""
        warn(
            "\n".join(filter(None, [f"{failure.describe()}.{follows}", failure.stacks])),
            failure.what if is_start else None,
        )
        records = [record for record in self.environments.records.values() if record.worker is worker]
        if action is Action.ALONE:
            warn(f"{failure.describe()}; its {len(records)} environments are now played one by one.")
            requested.suspects.update(record.env_id for record in records)
        elif action is Action.MAIN:
            text = f"{failure.describe()}; its {len(records)} environments stay in the main process until a reset."
            warn(text, (failure.what, action))
            self.placement.place({record.env_id: None for record in records})
