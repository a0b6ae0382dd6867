"""A scripted player of TextWorld's games: it explores all rooms and takes the requested items; it cannot cook.

It knows only what a model knows: the observations and its own replies.
"""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Callable, Iterator, Sequence

from ragen.env.textworld.text import admissible_in

_ROOM = re.compile(r"^-= (.+?) =-$", re.M)
_RECIPE = re.compile(r"Ingredients:\n(.+?)\n\s*\nDirections:", re.S)
_BACK = {"go north": "go south", "go south": "go north", "go east": "go west", "go west": "go east"}


class _Known:
    """The rooms seen so far, where their exits lead, and the commands offered in each."""

    def __init__(self, shown: Sequence[str], said: Sequence[str]) -> None:
        self.room = ""
        self.commands: list[str] = []
        self.offered: dict[str, set[str]] = {}
        self._ways: dict[str, dict[str, str | None]] = {}  # room, then exit: the room it leads to, or None
        for number, text in enumerate(shown):
            came_from, action = self.room, said[number - 1] if 0 < number <= len(said) else ""
            self.room = (_ROOM.findall(text) or [self.room])[-1]
            if action in self._ways.get(came_from, {}):
                self._ways[came_from][action] = self.room
            self.commands = admissible_in(text)
            self.offered.setdefault(self.room, set()).update(self.commands)
            exits = self._ways.setdefault(self.room, {})
            for command in self.commands:
                if command.startswith("go "):
                    exits.setdefault(command, None)
            if self.room != came_from and (back := _BACK.get(action)) in exits:
                exits[back] = came_from

    def way_to(self, is_goal: Callable[[str | None], bool]) -> str | None:
        """The first command of the shortest way to a room; None as a room stands for any unexplored one."""
        queue: deque[tuple[str, str]] = deque([(self.room, "")])
        seen = {self.room}
        while queue:
            room, first = queue.popleft()
            for action, leads_to in self._ways.get(room, {}).items():
                begins = first or action
                if is_goal(leads_to):
                    return begins if begins in self.commands else None
                if leads_to is not None and leads_to not in seen:
                    seen.add(leads_to)
                    queue.append((leads_to, begins))
        return None


def solve(shown: Sequence[str], said: Sequence[str]) -> str | None:
    """Choose the next command.

    Args:
        shown: The observations that are still in the context, the newest last, with admissible commands.
        said: The replies to all of them except the newest.

    Returns:
        An admissible command; None if no command seems useful.
    """
    known = _Known(shown, said)
    goals = list(_goals(shown, said))
    for wanted, _ in goals:
        if found := next((each for each in known.commands if _is(each, wanted)), None):
            return found
    for command in known.commands:
        if command.startswith(("unlock ", "open ")) and command not in said:
            return command
    if step := known.way_to(lambda room: room is None):
        return step
    for _, sign in goals:
        places = {room for room, offered in known.offered.items() if any(_is(each, sign) for each in offered)}
        if places and known.room not in places and (step := known.way_to(places.__contains__)):
            return step
    return "prepare meal" if "prepare meal" in known.commands and said[-1] != "prepare meal" else None


def _is(command: str, wanted: str) -> bool:
    """Whether a command is the wanted one, possibly followed by a place."""
    return command == wanted or command.startswith(f"{wanted} from ")


def _goals(shown: Sequence[str], said: Sequence[str]) -> Iterator[tuple[str, str]]:
    """Useful commands, the best first, each with a command that is offered where it is possible."""
    yield "eat meal", "eat meal"
    task = _ROOM.split(shown[0])[0]
    for command in (each for text in shown for each in admissible_in(text) if each.startswith("take ")):
        item = command.removeprefix("take ").partition(" from ")[0]
        if item != "cookbook" and command not in said and re.search(rf"\b{re.escape(item)}\b", task):
            yield command, command
    recipe = _RECIPE.search("\n".join(shown))
    if recipe is None:
        yield "examine cookbook", "examine cookbook"
        return
    is_left = False
    for item in map(str.strip, recipe[1].splitlines()):
        is_carried = f"drop {item}" in admissible_in(shown[-1])
        if not is_carried and not any(_is(each, f"take {item}") for each in said):
            is_left = True
            yield f"take {item}", f"take {item}"
    if not is_left:
        yield "prepare meal", "examine cookbook"
