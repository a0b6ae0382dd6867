"""Solves a 2x2 cube that is a few turns away, from the text that shows it."""

from __future__ import annotations

import re

from ragen.env.rubikscube.cube import COLOURS, LEGACY_TURNS, MOVES, TURNS, Stickers, Turn, is_solved

_PAIR = re.compile(rf"\[([{COLOURS}]), ([{COLOURS}])\]")
_STATE_LIMIT = 300_000

# Turning a face is turning the opposite face and then the whole cube in the hand, which does not count as unsolved. So
# three neighboring faces are enough on a real cube.
_ENOUGH = ("U", "U'", "R", "R'", "F", "F'")


def read_stickers(state_text: str) -> Stickers | None:
    """The stickers that an observation shows; None if it shows no cube."""
    letters = "".join(map("".join, _PAIR.findall(state_text)))
    return tuple(map(COLOURS.index, letters)) if len(letters) == 24 else None


def solve(state_text: str, max_moves: int = 6, legacy_b_move: bool = False) -> list[str] | None:
    """The shortest list of turns that solves the cube, found breadth-first.

    Args:
        state_text: An observation of the cube.
        max_moves: How many turns it may take; a limit on the states looked at ends the search after about eight.
        legacy_b_move: Whether the cube turns its back as RAGEN 2026's does.

    Returns:
        Names of turns, at least one (a solved cube gets two that cancel: only a turn ends the game); None if the text
        shows no cube, or none was found.
    """
    stickers = read_stickers(state_text)
    if stickers is None:
        return None
    if is_solved(stickers):
        return ["U", "U'"]
    turns = LEGACY_TURNS if legacy_b_move else TURNS
    names = MOVES if legacy_b_move else _ENOUGH
    return _shortest(stickers, {name: turns[MOVES.index(name)] for name in names}, max_moves)


def _shortest(start: Stickers, turns: dict[str, Turn], max_moves: int) -> list[str] | None:
    came_from: dict[Stickers, tuple[Stickers, str] | None] = {start: None}
    frontier = [start]
    for _ in range(max_moves):
        reached = []
        for stickers in frontier:
            for name, turn in turns.items():
                after = turn(stickers)
                if after in came_from:
                    continue
                came_from[after] = (stickers, name)
                if is_solved(after):
                    return _path(came_from, after)
                reached.append(after)
        frontier = reached
        if len(came_from) > _STATE_LIMIT:
            return None
    return None


def _path(came_from: dict[Stickers, tuple[Stickers, str] | None], end: Stickers) -> list[str]:
    names = []
    step = came_from[end]
    while step:
        before, name = step
        names.append(name)
        step = came_from[before]
    return names[::-1]
