"""A scripted player of ALFWorld: it searches one receptacle after the other for the object that the task names.

It knows only what a model knows: the observations and its own replies.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

from ragen.env.textworld.text import admissible_in

_TASK = re.compile(r"Your task is to: (.+)")
_LAMP = re.compile(r"(?:look at|examine the) (\w+) (?:under|with) the (\w+)")
_PLACE = re.compile(
    r"(?:put|clean|heat|cool|find) (?:an? |some |two )?(clean |hot |cool )?(\w+) "
    r"(?:and put (?:it|them) )?(?:in|on) (\w+)"
)
_TOOLS = {"clean": "sinkbasin", "heat": "microwave", "cool": "fridge"}
_MADE = {"clean": "clean", "hot": "heat", "cool": "cool"}


def solve(shown: Sequence[str], said: Sequence[str]) -> str | None:
    """Choose the next command.

    Args:
        shown: The observations that are still in the context, the newest last, with admissible commands.
        said: The replies to all of them except the newest.

    Returns:
        An admissible command; None if no command seems useful.
    """
    commands = set(admissible_in(shown[-1]))
    return next((each for each in _wishes(shown, list(said), sorted(commands)) if each in commands), None)


def _wishes(shown: Sequence[str], said: list[str], commands: list[str]) -> Iterator[str]:
    """Useful commands, the best first."""
    found = _TASK.search("\n".join(shown))
    task = found[1] if found else ""
    held = next((_thing(each, "take") for each in _carried(shown, said)), "")
    at = next((each.removeprefix("go to ") for each in reversed(said) if each.startswith("go to ")), "")
    closed = f"The {at} is closed." in shown[-1]
    if by_lamp := _LAMP.search(task):
        if held:
            yield from (each for each in commands if each.startswith("use "))
            yield from _towards(by_lamp[2], shown, at)
        yield from _fetch(by_lamp[1], "", held, shown, said, commands, at, closed)
        return
    placing = _PLACE.search(task)
    if placing is None:
        return
    state, kind, holder = placing.groups()
    verb = _MADE.get((state or "").strip()) or next((each for each in _TOOLS if task.startswith(each)), "")
    if held:
        if verb and not any(each.startswith(f"{verb} {held} ") for each in said):
            yield from (each for each in commands if each.startswith(f"{verb} {held} "))
            yield from (each for each in commands if each.startswith(f"go to {_TOOLS[verb]} "))
        if at.startswith(f"{holder} "):
            yield f"open {at}"
            yield f"move {held} to {at}"
        yield from (each for each in commands if each.startswith(f"go to {holder} ") and each not in said)
        yield from (each for each in commands if each.startswith(f"go to {holder} "))
        return
    yield from _fetch(kind, holder, held, shown, said, commands, at, closed)


def _carried(shown: Sequence[str], said: Sequence[str]) -> list[str]:
    """The command that took the object being carried, if there is one."""
    carried: list[str] = []
    for command, reply in zip(said, shown[1:], strict=False):
        if command.startswith("take ") and "You pick up" in reply:
            carried = [command]
        elif command.startswith("move ") and "You move" in reply:
            carried = []
    return carried


def _thing(command: str, verb: str) -> str:
    return command.removeprefix(f"{verb} ").partition(" from ")[0]


def _towards(kind: str, shown: Sequence[str], at: str) -> Iterator[str]:
    """Commands that go to a place where an object of this kind was seen."""
    for text in shown:
        place = re.search(rf"(?:On the|The) ([a-z]+ \d+)[^.]*?(?: is open\. In it)?, you see [^.]*\b{kind} \d", text)
        if place and place[1] != at:
            yield f"go to {place[1]}"


def _fetch(
    kind: str, holder: str, held: str, shown: Sequence[str], said: list[str], commands: list[str], at: str, closed: bool
) -> Iterator[str]:
    """Commands that take an object of this kind that is not yet in place, or that search for one."""
    if not held:
        for each in commands:
            if each.startswith(f"take {kind} ") and not each.partition(" from ")[2].startswith(
                f"{holder} " if holder else "\0"
            ):
                yield each
    if closed:
        yield f"open {at}"
    if not held:
        for place in _towards(kind, shown, at):
            if not (holder and place.startswith(f"go to {holder} ")) and said.count(place) < 2:
                yield place
    yield from (each for each in commands if each.startswith("go to ") and each not in said)
