"""The 2x2 cube as 24 stickers, and its twelve quarter turns as permutations.

Faces come in the order U L F R B D, four stickers each: top left, top right, bottom left, bottom right, as seen from
outside with U (for U: B; for D: F) at the top. A turn is three cycles of stickers, each of which moves to the next
place in its cycle.

The back turn is that of a real cube. RAGEN 2026 has 22 and 23 swapped, which separates the stickers of a corner: the
order of "B L" is 9 there, and 15 on a cube.
"""

from __future__ import annotations

from collections.abc import Callable
from operator import itemgetter

Stickers = tuple[int, ...]
Turn = Callable[[Stickers], Stickers]

COLOURS = "WOGRBY"
MOVES = tuple(f"{face}{prime}" for face in "UDLRFB" for prime in ("", "'"))
SOLVED: Stickers = tuple(face for face in range(6) for _ in range(4))

_CYCLES = {
    "U": "0 1 3 2, 4 16 12 8, 5 17 13 9",
    "D": "6 10 14 18, 7 11 15 19, 20 21 23 22",
    "L": "0 8 20 19, 2 10 22 17, 4 5 7 6",
    "R": "1 18 21 9, 3 16 23 11, 12 13 15 14",
    "F": "2 12 21 7, 3 14 20 5, 8 9 11 10",
    "B": "0 6 23 13, 1 4 22 15, 16 17 19 18",
}
_LEGACY_B = "0 6 22 13, 1 4 23 15, 16 17 19 18"


def _turn(cycles: str, forward: bool) -> Turn:
    source = list(range(24))
    for cycle in cycles.split(", "):
        places = list(map(int, cycle.split()))
        for here, there in zip(places, places[1:] + places[:1], strict=True):
            if forward:
                source[there] = here
            else:
                source[here] = there
    return itemgetter(*source)


def _turns(cycles: dict[str, str]) -> tuple[Turn, ...]:
    return tuple(_turn(cycles[name[0]], forward=len(name) == 1) for name in MOVES)


TURNS = _turns(_CYCLES)
"""The effect of each of ``MOVES`` on the stickers."""

LEGACY_TURNS = _turns({**_CYCLES, "B": _LEGACY_B})
"""The same with RAGEN 2026's back turn."""


def is_solved(stickers: Stickers) -> bool:
    """Whether every face shows one color, however the cube as a whole is turned."""
    return all(len(set(stickers[place : place + 4])) == 1 for place in range(0, 24, 4))
