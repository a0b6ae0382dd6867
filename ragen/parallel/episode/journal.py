"""The journal of an episode: what rebuilds an environment anywhere.

It holds how the episode began, and for each turn what was asked and what came back. What was changed between turns (a
method called, an attribute set) is written down too, so that a rebuilt environment has it. Replaying a journal on a
fresh environment compares every turn: an environment that does not give the same again is not deterministic, and the
:class:`Divergence` says at which turn and in what it differed.

An episode begins with a seed, or goes on with the generators that the last one has left. The journal of the second kind
holds their states. Where the class declares snapshots, the journal holds those too, and a replay begins at the last::

    reset   turn 1   turn 2   turn 3   turn 4      entries
              |                 |
          snapshot           snapshot              a rebuild loads this one and replays turn 4 alone
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

from ragen.errors import in_short
from ragen.parallel.episode.values import copied


class JournalTurn(NamedTuple):
    """One turn as it was played.

    Attributes:
        action: What was asked.
        recorded: What came back, as far as a replay has to give it again: the game's ``recorded`` fields.
    """

    action: Any
    recorded: tuple[Any, ...]


class Change(NamedTuple):
    """Something done to an environment between two turns.

    Attributes:
        name: Of a method or an attribute.
        arguments: Of the method, or the attribute's new value alone.
        keywords: Of the method.
        is_set: Whether the attribute is set; else the method is called.
    """

    name: str
    arguments: tuple[Any, ...] = ()
    keywords: Mapping[str, Any] = {}
    is_set: bool = False

    def apply(self, env: Any) -> Any:
        """Do it, or do it again; what the method gave. An attribute that is no method is read.

        The environment gets copies, since the change is still to be what it was when it is done again.
        """
        arguments, keywords = copied((self.arguments, self.keywords))
        if self.is_set:
            setattr(env, self.name, arguments[0])
            return None
        found = getattr(env, self.name)
        return found(*arguments, **keywords) if callable(found) else found


class Divergence(NamedTuple):
    """Where a replay differed from the journal.

    Attributes:
        turn: Index of the turn, -1 for the reset.
        what: What differed: ``"observation"``, ``"reward"``, ``"done"`` ...
        expected: What the journal holds.
        got: What the replay gave.
    """

    turn: int
    what: str
    expected: Any
    got: Any

    def describe(self) -> str:
        """The difference in a sentence's part, long observations shortened."""
        where = "the reset" if self.turn < 0 else f"turn {self.turn + 1}"
        return f"at {where} {self.contrast()}"

    def contrast(self) -> str:
        """What was expected and what was given."""
        return f"the {self.what} was {in_short(self.expected, 200)} and is now {in_short(self.got, 200)}"


MOST_SNAPSHOTS = 4 << 20  # bytes of an environment's snapshots, about, beside the last one, which is always kept


class Snapshot(NamedTuple):
    """What an environment's ``save`` gave.

    Attributes:
        position: After how many entries of the journal it was taken.
        state: What it gave, pickled.
        digest: What stands for what the environment showed then.
    """

    position: int
    state: bytes
    digest: Any


@dataclass
class EpisodeJournal:
    """One environment's episode; picklable.

    Attributes:
        seed: Seed of the reset.
        options: What else the reset was given, such as ``{"mode": "train"}``.
        digest: Digest of the first observation.
        before: State of the environment's generators before a reset without a seed; None where it was seeded.
        settings: Attributes that were set before the episode, by name.
        entries: Turns and changes, in order.
        has_begun: Whether there was a reset; a journal without one holds settings only.
        snapshots: Snapshots that were taken in the episode, in order.
        left_out: How many turns were played before the first entry, where the journal begins at a snapshot.
    """

    seed: int | None = None
    options: dict[str, Any] | None = None
    digest: Any = None
    before: Any = None
    settings: dict[str, Any] = field(default_factory=dict)
    entries: list[JournalTurn | Change] = field(default_factory=list)
    has_begun: bool = False
    snapshots: list[Snapshot] = field(default_factory=list)
    left_out: int = 0

    @property
    def is_empty(self) -> bool:
        """Whether a just built environment stands at its end."""
        return not self.has_begun and not self.settings

    @property
    def can_be_rebuilt(self) -> bool:
        """Whether it is known what decides the episode: a seed, the states of generators, or a snapshot."""
        return self.seed is not None or bool(self.snapshots) or is_known(self.before)

    @property
    def behind(self) -> int:
        """Entries since the last snapshot, or since the reset."""
        return len(self.entries) - (self.snapshots[-1].position if self.snapshots else 0)

    @property
    def ends_with_snapshot(self) -> bool:
        """Whether nothing has to be replayed."""
        return bool(self.snapshots) and not self.behind

    def keep(self, state: bytes, digest: Any) -> None:
        """Keep a snapshot of now; of older ones every other goes, where so many of this size take too much memory."""
        self.snapshots.append(Snapshot(len(self.entries), state, digest))
        if (len(self.snapshots) - 1) * len(state) > MOST_SNAPSHOTS:
            self.snapshots = [*self.snapshots[:-1:2], self.snapshots[-1]]

    def without_snapshots(self) -> EpisodeJournal:
        """The episode as it is replayed from its beginning, if that is known; itself if not."""
        return replace(self, snapshots=[]) if self.seed is not None or is_known(self.before) else self.from_snapshot()

    def from_snapshot(self) -> EpisodeJournal:
        """The episode from its last snapshot on; itself where there is none."""
        if not self.snapshots:
            return self
        last = self.snapshots[-1]
        before = sum(isinstance(entry, JournalTurn) for entry in self.entries[: last.position])
        later, snapshots = self.entries[last.position :], [last._replace(position=0)]
        return replace(self, entries=later, snapshots=snapshots, left_out=before)

    @property
    def turns(self) -> int:
        """How many of the entries are turns."""
        return self.left_out + len(self.played())

    def append_change(self, change: Change) -> None:
        """Record a change; before the first reset, only that of an attribute lasts."""
        if self.has_begun:
            self.entries.append(change)
        elif change.is_set:
            self.settings[change.name] = change.arguments[0]

    def lasting(self) -> dict[str, Any]:
        """Attributes that were set before the episode or in it, as the next one begins with them."""
        if not self.entries:
            return dict(self.settings)
        later = {entry.name: entry.arguments[0] for entry in self.entries if isinstance(entry, Change) and entry.is_set}
        return {**self.settings, **later}

    def played(self) -> list[JournalTurn]:
        """The turns alone."""
        return [entry for entry in self.entries if isinstance(entry, JournalTurn)]

    def until(self, turn: int | None) -> EpisodeJournal:
        """The episode with so many turns and what was changed before the last, or all of it; a journal of its own."""
        entries, left = list(self.entries), turn
        for place, entry in enumerate(self.entries):
            if left == 0:
                del entries[place:]
                break
            if left is not None and isinstance(entry, JournalTurn):
                left -= 1
        snapshots = [each for each in self.snapshots if each.position <= len(entries)]
        return replace(self, settings=dict(self.settings), entries=entries, snapshots=snapshots)


def is_known(before: tuple[Any, Any] | None) -> bool:
    """Whether states of generators are such that they decide an episode: the global ones, or some of its own."""
    return before is not None and before[1] is not None and (before[0] is not None or bool(before[1]))


def difference(turn: int, names: tuple[str, ...], expected: tuple[Any, ...], got: tuple[Any, ...]) -> Divergence | None:
    """Where a turn, -1 for the reset, gave something else than was recorded; ``digest`` is that of the observation."""
    for name, was, is_now in zip(names, expected, got, strict=True):
        if not _is_same(was, is_now):
            return Divergence(turn, "observation" if name == "digest" else name, was, is_now)
    return None


def _is_same(one: Any, other: Any) -> bool:
    try:
        return bool(one == other) or repr(one) == repr(other)  # repr: NaN equals itself here
    except Exception:  # an array has no truth value
        return repr(one) == repr(other)
