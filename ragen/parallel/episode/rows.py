"""Turns of many environments in one piece: what is asked as a row, what came of it, and the pages that it leaves.

A round gives every environment an item and an outcome of its own, and writes a line into its journal; for an
environment that steps in 4 us that costs more than the step. Where nothing is out of the ordinary, turns are asked as a
:class:`Row` instead, come back as a :class:`RowResult`, and are kept as a :class:`Page` that belongs to all of them::

    page --> page --> page --> page          one for each row, in the order in which they were played
      ^                          ^
      |                          +-- where env 3's episode began: it has read no further
      +-- where env 0's did

An environment's journal reads its lines off the pages when somebody asks for it, which is what a failure, a fork, a
move or a change do; the lines are those that single turns would have written. A page that all have read or left behind
is gone by itself.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any
from weakref import ref

from ragen.parallel.episode.game import EpisodeStart
from ragen.parallel.episode.journal import JournalTurn

FAR = 1024  # pages that an episode may be behind before it reads them, so that others can go


class Row(ABC):
    """Turns that are asked of environments, one of each.

    Attributes:
        env_ids: The environments.
    """

    __slots__ = ("env_ids",)
    env_ids: Sequence[int]

    def __len__(self) -> int:
        return len(self.env_ids)

    @abstractmethod
    def turn(self, index: int) -> Any:
        """What is asked of one of them, as it is asked of one alone."""

    @abstractmethod
    def part(self, indices: Sequence[int]) -> Row:
        """Some of them; a range of indices counts up by one."""

    @abstractmethod
    def play(self, envs: Sequence[Any], watch: Any) -> RowResult:
        """Play all turns, in order.

        Args:
            envs: The environments, as the game has built them.
            watch: Is told, before each, the time in ``since``; and ``watch.mark``, if there is one, is called with its
                index.

        Raises:
            RowBroken: An environment raised.
        """

    def items(self) -> list[tuple[int, Any]]:
        """As single turns."""
        return [(env_id, self.turn(index)) for index, env_id in enumerate(self.env_ids)]


class RowResult(ABC):
    """What came of a row, or of its beginning."""

    __slots__ = ()

    @abstractmethod
    def __len__(self) -> int:
        """Of how many turns."""

    @abstractmethod
    def one(self, index: int) -> Any:
        """What came of one of them, as the game gives it for one alone."""

    @abstractmethod
    def recorded(self, index: int) -> tuple[Any, ...]:
        """What a journal keeps of :meth:`one`: what the game's ``record`` gives of it."""

    @abstractmethod
    def begun(self) -> Sequence[int]:
        """Indices of those in whose turn an episode began."""

    def forget(self) -> None:  # noqa: B027  # most have nothing to forget
        """What was shown is not needed any more, but for its digests."""


class RowBroken(Exception):
    """An environment raised in the middle of a row; that is this one's cause.

    Attributes:
        played: What came of the turns before its own.
    """

    def __init__(self, played: RowResult) -> None:
        """Tell what was played."""
        super().__init__(played)
        self.played = played


class RowItems(Mapping[int, Any]):
    """The items of a row by env_id, made when they are looked at."""

    def __init__(self, row: Row) -> None:
        """Those of this row."""
        self._row = row
        self._items: dict[int, Any] | None = None

    def __len__(self) -> int:
        return len(self._row)

    def __iter__(self) -> Iterator[int]:
        return iter(self._row.env_ids)

    def __getitem__(self, env_id: int) -> Any:
        if self._items is None:
            self._items = {item[0]: item for item in self._row.items()}
        return self._items[env_id]


class Page:
    """A row that was played, with what came of it.

    Attributes:
        number: How many there were before.
        next: The page after it.
    """

    __slots__ = ("__weakref__", "_places", "_result", "_row", "next", "number")

    def __init__(self, number: int, row: Row | None = None, result: RowResult | None = None) -> None:
        """Keep these; the first page of a book is empty."""
        self.number, self._row, self._result = number, row, result
        self.next: Page | None = None
        self._places: dict[int, int] | None = None

    def _find(self, env_id: int) -> int | None:
        if self._places is None:
            ids = self._row.env_ids if self._row is not None else ()
            self._places = {each: place for place, each in enumerate(ids)}
        return self._places.get(env_id)

    def line(self, env_id: int) -> JournalTurn | None:
        """What an environment's journal holds of this page; None if it is not on it."""
        place = self._find(env_id)
        if place is None or self._row is None or self._result is None:
            return None
        return tuple.__new__(JournalTurn, (self._row.turn(place), self._result.recorded(place)))

    def shown(self, env_id: int) -> Any:
        """What an environment showed, which is on it."""
        place = self._find(env_id)
        assert place is not None and self._result is not None
        return self._result.one(place).observation

    def start(self, start: Callable[[Any, Any], EpisodeStart | None], index: int) -> tuple[EpisodeStart, Any]:
        """How the episode began that began in a turn of this page, by the game's ``start``, and what it shows."""
        assert self._row is not None and self._result is not None
        result = self._result.one(index)
        found = start(self._row.turn(index), result)
        assert found is not None
        return found, result.observation

    def forget_shown(self, newer: Page) -> None:
        """What was shown is old, if a newer page is about the same environments."""
        if self._row is None or self._result is None or newer._row is None:
            return
        if self._row.env_ids is newer._row.env_ids or self._row.env_ids == newer._row.env_ids:
            self._result.forget()


class Pages:
    """The pages of one engine: the last one, from which all later ones follow.

    Attributes:
        last: The newest page.
    """

    __slots__ = ("_newest", "last")

    def __init__(self) -> None:
        """None but an empty one."""
        self.last = Page(0)
        self._newest: dict[int, ref[Page]] = {}  # by the first environment on it

    def add(self, row: Row, result: RowResult) -> Page:
        """Keep what was played."""
        page = Page(self.last.number + 1, row, result)
        first = row.env_ids[0]
        if first in self._newest and (older := self._newest[first]()) is not None:
            older.forget_shown(page)
        self._newest[first] = ref(page)
        self.last.next = page
        self.last = page
        return page


class Reader:
    """Where an environment is in the pages: it has read, or has nothing to do with, what is up to there."""

    __slots__ = ("_at", "_pages")

    def __init__(self, pages: Pages) -> None:
        """Begin at the end."""
        self._pages, self._at = pages, pages.last

    @property
    def is_behind(self) -> bool:
        """Whether there is something to read."""
        return self._at.next is not None

    @property
    def distance(self) -> int:
        """How many pages there are to read."""
        return self._pages.last.number - self._at.number

    def skip(self) -> None:
        """Have nothing to do with any page that there is."""
        self._at = self._pages.last

    def read(self, env_id: int) -> Iterator[tuple[Page, JournalTurn]]:
        """The lines of an environment's journal on pages that it has not read, each with its page."""
        while (page := self._at.next) is not None:
            if (line := page.line(env_id)) is not None:
                yield page, line
            self._at = page
