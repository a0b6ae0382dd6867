"""The journal of an episode, from which an environment can be rebuilt anywhere.

It holds how the episode began, and the action and result of each turn. Changes between turns (a method called, an
attribute set) are recorded too, so that a rebuilt environment has them. Replaying a journal on a fresh environment
compares every turn: an environment that does not reproduce it is not deterministic, and the :class:`Divergence` holds
the turn and the field that differed.

An episode begins with a seed, or continues with the generators that the last one left; in that case the journal holds
their states. If the class declares snapshots, the journal holds the last one, and a replay begins there::

    reset   turn 1   turn 2   turn 3   turn 4      entries
                                |
                            snapshot               a rebuild loads this and replays turn 4 alone
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

from envlanes.episode.game import EpisodeStart
from envlanes.episode.values import copied
from envlanes.errors import in_contrast


class JournalTurn(NamedTuple):
    """One turn as it was played.

    Attributes:
        action: The action.
        recorded: The fields of the result that a replay must reproduce: the game's ``recorded`` fields.
    """

    action: Any
    recorded: tuple[Any, ...]


class Change(NamedTuple):
    """A change made to an environment between two turns.

    Attributes:
        name: Name of a method or an attribute.
        arguments: The method's arguments, or only the attribute's new value.
        keywords: The method's keyword arguments.
        is_set: Whether the attribute is set; else the method is called.
    """

    name: str
    arguments: tuple[Any, ...] = ()
    keywords: Mapping[str, Any] = {}
    is_set: bool = False

    def apply(self, env: Any) -> Any:
        """Apply the change; returns the method's result. An attribute that is not a method is read.

        The environment gets copies of the arguments, so that the change can be applied again.
        """
        # Copies: what the environment goes on changing must stay in the journal as it was.
        arguments, keywords = copied((self.arguments, self.keywords))
        if self.is_set:
            setattr(env, self.name, arguments[0])
            return None
        found = getattr(env, self.name)
        return found(*arguments, **keywords) if callable(found) else found


class Divergence(NamedTuple):
    """A difference between a replay and the journal.

    Attributes:
        turn: Index of the turn, -1 for the reset.
        what: The part that differed: ``"observation"``, ``"reward"``, ``"done"`` ...
        expected: The value in the journal.
        got: The value in the replay.
        snapshot: After which turn the snapshot was taken that the replay began at, 0 for the reset; None if it began
            with a reset.
    """

    turn: int
    what: str
    expected: Any
    got: Any
    snapshot: int | None = None

    def describe(self) -> str:
        """The difference as part of a sentence, with long observations shortened."""
        where = "the reset" if self.turn < 0 else f"turn {self.turn + 1}"
        was, is_now = in_contrast(self.expected, self.got, 200)
        return f"at {where} the {self.what} was {was} and is now {is_now}"


class Snapshot(NamedTuple):
    """A snapshot of an environment.

    Attributes:
        position: Number of the journal's entries at the time it was taken.
        state: The pickled state.
        digest: The digest of the environment's observation at that time.
    """

    position: int
    state: bytes
    digest: Any


@dataclass
class EpisodeJournal:
    """One environment's episode; picklable.

    Attributes:
        start: Its beginning; None before the first reset, when a journal holds settings only.
        settings: Attributes that were set before the episode, by name.
        entries: Turns and changes, in order.
        snapshot: The last snapshot that was taken in the episode, if any.
        left_out: Number of turns played before the first entry, where the journal begins at a snapshot.
    """

    start: EpisodeStart | None = None
    settings: dict[str, Any] = field(default_factory=dict)
    entries: list[JournalTurn | Change] = field(default_factory=list)
    snapshot: Snapshot | None = None
    left_out: int = 0

    @property
    def is_empty(self) -> bool:
        """Whether a newly built environment is already at its end."""
        return self.start is None and not self.settings

    @property
    def can_be_rebuilt(self) -> bool:
        """Whether the journal determines the episode: by a seed, generator states, or a snapshot."""
        return self.snapshot is not None or self._begins_known

    @property
    def _begins_known(self) -> bool:
        """Whether a seed decides the episode, or states of generators: the global ones, or some of its own."""
        if self.start is None:
            return False
        outer, own = self.start.before or (None, None)
        return self.start.seed is not None or (own is not None and (outer is not None or bool(own)))

    @property
    def ends_with_snapshot(self) -> bool:
        """Whether nothing has to be replayed."""
        return self.snapshot is not None and self.snapshot.position == len(self.entries)

    def keep(self, state: bytes, digest: Any) -> None:
        """Keep a snapshot of the current state in place of the last one."""
        self.snapshot = Snapshot(len(self.entries), state, digest)

    def without_snapshot(self) -> EpisodeJournal:
        """The journal for a replay from the beginning; from the snapshot if that is impossible."""
        return replace(self, snapshot=None) if self._begins_known else self.from_snapshot()

    def from_snapshot(self) -> EpisodeJournal:
        """The episode from its snapshot on; itself if there is none."""
        if self.snapshot is None:
            return self
        position = self.snapshot.position
        left_out, later = _count_turns(self.entries[:position]), self.entries[position:]
        return replace(self, entries=later, snapshot=self.snapshot._replace(position=0), left_out=left_out)

    @property
    def turns(self) -> int:
        """The number of turns."""
        return self.left_out + _count_turns(self.entries)

    def append_change(self, change: Change) -> None:
        """Record a change; before the first reset, only a set attribute is kept."""
        if self.start is not None:
            self.entries.append(change)
        elif change.is_set:
            self.settings[change.name] = change.arguments[0]

    def lasting(self) -> dict[str, Any]:
        """Attributes that were set before or during the episode, with which the next one begins."""
        later = {entry.name: entry.arguments[0] for entry in self.entries if isinstance(entry, Change) and entry.is_set}
        return {**self.settings, **later}

    def until(self, turn: int | None) -> EpisodeJournal:
        """A copy of the journal up to a turn, with the changes before it; None copies all of it."""
        # An environment as it was after a turn: changes that were made before the next one are no part of it.
        ends = [0, *(place for place, entry in enumerate(self.entries, 1) if isinstance(entry, JournalTurn))]
        end = len(self.entries) if turn is None else ends[turn]
        snapshot = self.snapshot if self.snapshot is not None and self.snapshot.position <= end else None
        return replace(self, settings=dict(self.settings), entries=self.entries[:end], snapshot=snapshot)


def _count_turns(entries: Iterable[Any]) -> int:
    return sum(isinstance(entry, JournalTurn) for entry in entries)


def difference(turn: int, names: tuple[str, ...], expected: tuple[Any, ...], got: tuple[Any, ...]) -> Divergence | None:
    """The first difference between a turn (-1: the reset) and its record; ``digest`` is the observation's."""
    for name, was, is_now in zip(names, expected, got, strict=True):
        if not _is_same(was, is_now):
            return Divergence(turn, "observation" if name == "digest" else name, was, is_now)
    return None


def _is_same(one: Any, other: Any) -> bool:
    try:
        is_equal = bool(one == other)
    except Exception:  # an array has no truth value
        is_equal = False
    return is_equal or repr(one) == repr(other)  # NaN equals itself here
