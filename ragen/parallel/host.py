"""Who holds environments: the same object in the main process, in a worker, and in an environment service.

A host builds environments from specs, resets them, plays their turns, replays their journals and closes them. Every
method takes a batch and returns one :class:`Outcome` per item, in order: an environment that raises is an outcome like
another, and the rest of the batch goes on. Before each item the host reports its position (``mark``), which is how the
main process knows whose deadline is running.
"""

from __future__ import annotations

import inspect
import logging
import pickle
import traceback
from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from time import perf_counter, thread_time
from typing import Any, NamedTuple

from ragen.errors import EnvError
from ragen.parallel import system
from ragen.parallel.copying import GroupCopier, paint, picture
from ragen.parallel.global_rng import EnvRng, outer_state_kept
from ragen.parallel.journal import Divergence, EpisodeJournal
from ragen.parallel.turn import (
    EnvSpec,
    Observation,
    TurnRequest,
    TurnResult,
    action_lookup,
    copied,
    digest_observation,
    named,
    observe,
    play_turn,
)

log = logging.getLogger(__name__)

_LONGEST_TEXT, _LONGEST_TRACE = 2_000, 20_000  # characters that are kept of what an exception says
_SHORT = 0.05  # seconds that trying out a copy may take in any case
_LONG = 1.0  # seconds that building one more environment for that may take in any case
SLOW = 3e-4  # seconds of a turn from which its processor time is looked at too


class ResetOrder(NamedTuple):
    """One reset to do.

    Attributes:
        env_id: Which environment.
        seed: Seed of the episode.
        mode: ``"train"`` or ``"val"``.
    """

    env_id: int
    seed: int | None
    mode: str | None


class ReplayOrder(NamedTuple):
    """One episode to rebuild on a fresh environment.

    Attributes:
        env_id: Which environment.
        journal: What happened so far.
    """

    env_id: int
    journal: EpisodeJournal


@dataclass(frozen=True, slots=True)
class Raised:
    """An exception of an environment, in a form that always survives the journey to another process.

    Attributes:
        phase: What was being done: ``"build"``, ``"reset"``, ``"play"``, ``"replay"`` ...
        text: Type and message, the same in whatever process it was raised.
        trace: The formatted traceback.
        pickled: The exception itself, if it comes from another process and can be pickled.
        original: The exception itself, if it was raised in this process.
    """

    phase: str
    text: str
    trace: str
    pickled: bytes | None = None
    original: BaseException | None = None

    @classmethod
    def of(cls, error: BaseException, phase: str, travels: bool = True) -> Raised:
        """Describe an exception that was just caught.

        Args:
            error: The exception.
            phase: What was being done.
            travels: Whether another process has to be told.
        """
        text, trace = _describe(error), _trace(error)
        if not travels:
            return cls(phase, text, trace, original=error.with_traceback(None))
        try:
            pickled = pickle.dumps(error) if len(text) < _LONGEST_TEXT else None
            pickle.loads(pickled or b"N.")  # many exceptions with arguments of their own cannot be loaded again
        except BaseException as failure:
            let_signals_pass(failure)
            pickled = None
        return cls(phase, text, trace, pickled)

    def exception(self) -> BaseException:
        """The environment's exception, with the traceback of the process it was raised in as its cause."""
        error: Any = self.original
        try:
            error = pickle.loads(self.pickled) if error is None and self.pickled else error
        except BaseException as failure:  # what loads in one process need not load in another
            let_signals_pass(failure)
        if not isinstance(error, BaseException):
            error = EnvError(self.text)
        error.__cause__ = RemoteTraceback(self.trace)
        return error


class TimedOut(Raised):
    """An environment that was overdue in the main process, and was interrupted."""


class Overdue(BaseException):
    """Raised inside an environment that takes too long; what it says is what happened."""


class RemoteTraceback(Exception):
    """The traceback of an exception that was raised in another place, as text."""

    def __str__(self) -> str:
        return "\n" + self.args[0]


class Outcome(NamedTuple):
    """What came of one item of a batch.

    Attributes:
        env_id: Which environment.
        value: The result, a :class:`Raised`, or a :class:`Divergence`.
        seconds: Time it took in the host.
        waited: The part of it in which this thread did not compute; only measured where it can matter.
    """

    env_id: int
    value: Any
    seconds: float
    waited: float = 0.0


@dataclass(slots=True)
class _Replica:
    spec: EnvSpec
    env: Any = None
    rng: EnvRng | None = None
    takes_mode: bool = True
    build_s: float = 0.0  # seconds that building took
    is_slow: bool = True  # looked at once, and then as long as it is


@dataclass(slots=True)
class _Leader:
    """The member of a group that was really reset."""

    replica: _Replica
    observation: Observation
    seconds: float
    picture: bytes | None = None

    def paint(self, member: _Replica) -> None:
        """Give a member the state that the picture shows."""
        paint(member.env, self.picture or b"")
        self.hand_on_rng(member)

    def hand_on_rng(self, member: _Replica) -> None:
        """Give a member this one's state of the global generators."""
        if self.replica.rng is not None and member.rng is not None:
            member.rng.copy_from(self.replica.rng)

    def observation_of_its_own(self) -> Observation:
        """The observation for another member, sharing no array with this one's."""
        shown = self.observation
        return shown if isinstance(shown, str) else [image.copy() for image in shown]


def let_signals_pass(error: BaseException) -> None:
    """Raise again what a signal to this process has raised while an environment was at work.

    Whatever else an environment throws is its own failure, in main as in a worker: ``SystemExit``,
    ``asyncio.CancelledError``, ``GeneratorExit`` and classes of its own that derive from ``BaseException`` included. In
    main, a ``KeyboardInterrupt`` that the environment itself raises cannot be told from Ctrl-C, and is taken for it;
    workers know no Ctrl-C.
    """
    if system.may_come_from_signal(error):
        raise error


class EnvHost:
    """Environments that live in this process.

    Attributes:
        since: When an environment was last given something to do, on ``time.perf_counter()``; 0 while none is at work.
    """

    def __init__(self, mark: Callable[[int], None] | None = None, keeps_outer_rng: bool = True) -> None:
        """Start with none.

        Args:
            mark: Called with an item's index in its batch before work on it starts, and with the batch's length
                after the last.
            keeps_outer_rng: Whether the process's own random numbers must be left alone; not so in workers.
        """
        self._replicas: dict[int, _Replica] = {}
        self._understudies: list[_Replica] = []
        self._rng_users: set[int] = set()  # those that may draw from the global generators
        self._mark = mark or _mark_nothing
        self._at = 0
        self.since = 0.0
        self._copiers: dict[str, GroupCopier] = defaultdict(GroupCopier)
        self._keeps_outer_rng = keeps_outer_rng

    def __contains__(self, env_id: int) -> bool:
        return env_id in self._replicas

    def __len__(self) -> int:
        return len(self._replicas)

    def adopt(self, specs: Iterable[EnvSpec]) -> None:
        """Take environments in; they are built when first needed."""
        for spec in specs:
            self.discard([spec.env_id])
            self._replicas[spec.env_id] = _Replica(spec)
            if _uses_global_rng(spec):
                self._rng_users.add(spec.env_id)

    def reset(self, orders: Sequence[ResetOrder]) -> list[Outcome]:
        """Begin new episodes; members of a group are copied from the first one where the environment can do that.

        Returns:
            Outcomes with ``(observation, digest)``.
        """
        leaders: dict[tuple[int, int | None], _Leader] = {}
        return self._each(orders, "reset", lambda order: self._reset_one(order, leaders))

    def play(self, requests: Sequence[TurnRequest], first: int = 0) -> list[Outcome]:
        """Play turns. Outcomes hold a :class:`~ragen.parallel.turn.TurnResult`.

        Args:
            requests: The turns.
            first: Index of the first of them, where they are part of a batch.
        """
        return self._each(requests, "play", self._play_one, first)

    def replay(self, orders: Sequence[ReplayOrder]) -> list[Outcome]:
        """Rebuild episodes on fresh environments. Outcomes hold None, or a :class:`Divergence`."""
        return self._each(orders, "replay", self._replay_one)

    def call(self, orders: Sequence[tuple[int, str, tuple[Any, ...]]]) -> list[Outcome]:
        """Call a method of each environment, or read an attribute that is none. Outcomes hold what it gave."""
        return self._each([_Call(*order) for order in orders], "call", self._call_one)

    def give(self, env_ids: Sequence[int]) -> list[Outcome]:
        """Hand environments over as they are. Outcomes hold bytes for :meth:`take`; those are no longer here."""
        return self._each([_Call(env_id, "give", ()) for env_id in env_ids], "give", self._give_one)

    def take(self, gifts: Sequence[tuple[int, bytes]]) -> list[Outcome]:
        """Take over environments that another host gave."""
        return self._each([_Call(env_id, "take", (gift,)) for env_id, gift in gifts], "take", self._take_one)

    def discard(self, env_ids: Iterable[int]) -> None:
        """Close environments and forget them; a failure to close is logged."""
        for env_id in env_ids:
            replica = self._forget(env_id)
            if replica is not None:
                self._close(replica)

    def close(self) -> None:
        """Close all, each an item of its own to the deadline."""
        replicas = [*self._replicas.values(), *self._understudies]
        self._replicas.clear()
        self._understudies.clear()
        for index, replica in enumerate(replicas):
            self._mark(index)
            self._close(replica)

    def _close(self, replica: _Replica) -> None:
        outer = outer_state_kept() if self._keeps_outer_rng and replica.rng else nullcontext()
        with outer, system.interrupts_let_through():
            self.since = perf_counter()
            _close(replica)
            self.since = 0.0

    def _each(self, items: Sequence[Any], phase: str, work: Callable[[Any], Any], first: int = 0) -> list[Outcome]:
        outcomes = []
        with self._outer_rng(items), system.interrupts_let_through():  # not while the outer state is given back
            for index, item in enumerate(items, first):
                self._at = index
                self._mark(index)
                env_id = item.env_id
                replica = self._replicas[env_id]
                was_slow = replica.is_slow
                computed, start = thread_time() if was_slow else 0.0, perf_counter()
                try:
                    self.since = start
                    value = work(item)
                    self.since = 0.0
                except Overdue as error:
                    self.since = 0.0
                    value = TimedOut(phase, str(error), traceback.format_exc())
                except BaseException as error:
                    self.since = 0.0
                    let_signals_pass(error)
                    phase_now = phase if replica.env is not None else "build"
                    value = Raised.of(error, phase_now, travels=not self._keeps_outer_rng)
                seconds = perf_counter() - start
                waited = max(0.0, seconds - (thread_time() - computed)) if was_slow else 0.0
                if phase == "play":
                    replica.is_slow = seconds > SLOW
                outcomes.append(named(Outcome, (env_id, value, seconds, waited)))
            self._mark(first + len(items))
        return outcomes

    def _outer_rng(self, items: Sequence[Any]) -> AbstractContextManager[None]:
        kept = self._keeps_outer_rng and self._rng_users and any(item.env_id in self._rng_users for item in items)
        return outer_state_kept() if kept else nullcontext()

    def _forget(self, env_id: int) -> _Replica | None:
        self._rng_users.discard(env_id)
        return self._replicas.pop(env_id, None)

    def _reset_one(self, order: ResetOrder, leaders: dict[tuple[int, int | None], _Leader]) -> tuple[Observation, Any]:
        replica = self._replicas[order.env_id]
        if replica.env is None:
            _build(replica)
        group = (replica.spec.group_id, order.seed)
        leader = leaders.get(group)
        if leader is not None and self._copy(leader, replica):
            observation = leader.observation_of_its_own()
        else:
            start = perf_counter()
            observation = _reset(replica, order.seed, order.mode)
            if leader is None:
                leaders[group] = _Leader(replica, observation, perf_counter() - start)
            elif leader.picture is not None:
                alike = picture(replica.env) == leader.picture and self._plays_alike(leader, replica, order)
                self._copiers[replica.spec.tag].learn(alike)
        return observation, digest_observation(observation)

    def _copy(self, leader: _Leader, member: _Replica) -> bool:
        """Make a member what the leader of its group is right after its reset, if that is known to be right."""
        env, copier = leader.replica.env, self._copiers[member.spec.tag]
        if type(env) is not type(member.env):
            return False
        if copier.wants(env, leader.seconds):
            leader.picture = leader.picture or picture(env)
            if leader.picture is None:
                copier.learn(False)
            if not copier.is_trusted:
                return False
            leader.paint(member)
            return True
        if not getattr(member.env, "copy_from", _cannot_copy)(env):
            return False
        leader.hand_on_rng(member)
        return True

    def _plays_alike(self, leader: _Leader, member: _Replica, order: ResetOrder) -> bool:
        """Whether a copy of the leader shows and plays the same as an environment that was really reset.

        An environment may keep state where no picture shows it: in a descriptor, or somewhere by its ``id``. It is
        tried with an understudy, since what an environment shows may depend on how often it was reset, and only where
        that can be interrupted: it may hang at actions that are none of its own. The understudy is closed with all
        others: what it holds may be shared.
        """
        from ragen.parallel.alarm import Deadline  # late: it needs this module

        patience = max(_LONG, 10 * leader.seconds)
        if member.build_s > patience:
            return False
        try:
            with Deadline(self, patience) as is_bounded:
                return is_bounded and self._try_out(leader, _Replica(member.spec), order)
        except Overdue:
            return False
        except BaseException as error:
            let_signals_pass(error)
            return False
        finally:
            self._restart_clock()

    def _try_out(self, leader: _Leader, understudy: _Replica, order: ResetOrder) -> bool:
        """Let an understudy play what was really reset, and what was copied."""
        self._understudies.append(understudy)
        self._restart_clock()
        _build(understudy)
        deadline = perf_counter() + max(_SHORT, 10 * leader.seconds)
        _reset(understudy, order.seed, order.mode)
        really = _rehearse(understudy, deadline)
        self._restart_clock()
        _reset(understudy, (order.seed or 0) + 1, order.mode)
        leader.paint(understudy)
        return really == _rehearse(understudy, deadline) and perf_counter() < deadline

    def _restart_clock(self) -> None:
        """What is done from now on for the present item has a deadline of its own."""
        self._mark(self._at)
        self.since = perf_counter()

    def _play_one(self, request: TurnRequest) -> Any:
        return _play(self._replicas[request.env_id], request)

    def _replay_one(self, order: ReplayOrder) -> Divergence | None:
        replica = self._replicas[order.env_id]
        if replica.env is not None:
            _close(replica)
        _build(replica)
        journal = order.journal
        difference = journal.compare_reset(digest_observation(_reset(replica, journal.seed, journal.mode)))
        for index, request in enumerate(journal.requests(order.env_id)):
            if difference is not None:
                break
            self._restart_clock()
            difference = journal.compare_turn(index, self._play_one(request))
        return difference

    def _call_one(self, order: _Call) -> Any:
        replica = self._replicas[order.env_id]
        if replica.env is None:
            _build(replica)
        with replica.rng.in_place() if replica.rng else nullcontext():
            found = getattr(replica.env, order.name)
            return found(*order.arguments) if callable(found) else found

    def _give_one(self, order: _Call) -> bytes:
        replica = self._replicas[order.env_id]
        gift = pickle.dumps((replica.env, replica.rng), protocol=5)
        self._forget(order.env_id)
        return gift

    def _take_one(self, order: _Call) -> None:
        replica = self._replicas[order.env_id]
        replica.env, replica.rng = pickle.loads(order.arguments[0])


class _Call(NamedTuple):
    env_id: int
    name: str
    arguments: tuple[Any, ...]


def _mark_nothing(_: int) -> None:
    return None


def _uses_global_rng(spec: EnvSpec) -> bool:
    return getattr(spec.env_class, "uses_global_rng", True)


def _build(replica: _Replica) -> None:
    spec, start = replica.spec, perf_counter()
    replica.rng = EnvRng(0) if _uses_global_rng(spec) else None
    with replica.rng.in_place() if replica.rng else nullcontext():
        replica.takes_mode = _takes_mode(spec.env_class)
        replica.env = (
            spec.env_class() if spec.config is None else spec.env_class(copied(spec.config))
        )  # which it may change
    replica.build_s = perf_counter() - start


def _reset(replica: _Replica, seed: int | None, mode: str | None) -> Observation:
    if replica.rng is not None:
        replica.rng.seed(seed)
    with replica.rng.in_place() if replica.rng else nullcontext():
        replica.env.reset(seed=seed, **({"mode": mode} if replica.takes_mode else {}))
        return observe(replica.env)


def _play(replica: _Replica, request: TurnRequest) -> TurnResult:
    if replica.rng is None:
        return play_turn(replica.env, request)
    with replica.rng.in_place():
        return play_turn(replica.env, request)


def _rehearse(replica: _Replica, deadline: float) -> list[str]:
    """What an environment shows, and what some turns give, as texts."""
    told = []
    try:
        with replica.rng.in_place() if replica.rng else nullcontext():
            told.append(repr(digest_observation(observe(replica.env))))
        for turn, action in enumerate(_some_actions(replica.env)):
            if perf_counter() > deadline:
                break
            result = _play(replica, TurnRequest(replica.spec.env_id, turn, (action,), 1))
            told.append(repr((result.reward, result.done, result.digest)))
            if result.done:
                break
    except Exception as error:
        told.append(_describe(error))
    return told


def _takes_mode(env_class: Any) -> bool:
    parameters = inspect.signature(env_class.reset).parameters.values()
    return any(p.name == "mode" or p.kind is p.VAR_KEYWORD for p in parameters)


def _cannot_copy(_: Any) -> bool:
    return False


def _some_actions(env: Any) -> list[str]:
    """A few actions that an environment may know; any text is a legal action."""
    lookup = action_lookup(env)
    return [str(name) for name in lookup.values()][:4] if lookup else ["1", "a"]


def _close(replica: _Replica) -> None:
    env, replica.env = replica.env, None
    close = getattr(env, "close", None)
    if close is None:
        return
    try:
        with replica.rng.in_place() if replica.rng else nullcontext():
            close()
    except Overdue as error:
        log.warning("%s %s while it was closed", replica.spec.describe(), error)
    except BaseException as error:
        let_signals_pass(error)
        log.warning("%s failed to close", replica.spec.describe(), exc_info=True)


def _describe(error: BaseException) -> str:
    try:
        return _shortened(f"{type(error).__name__}: {error}", _LONGEST_TEXT)
    except BaseException as failure:  # an exception whose own __str__ fails
        let_signals_pass(failure)
        return type(error).__name__


def _trace(error: BaseException) -> str:
    try:
        return _shortened("".join(traceback.format_exception(error)), _LONGEST_TRACE)
    except BaseException as failure:
        let_signals_pass(failure)
        return f"a {type(error).__name__} whose traceback cannot be written\n"


def _shortened(text: str, limit: int) -> str:
    """The text, without its middle where it is longer than the limit."""
    left_out = len(text) - limit
    return text if left_out <= 0 else f"{text[: limit // 2]}... ({left_out} characters) ...{text[-limit // 2 :]}"
