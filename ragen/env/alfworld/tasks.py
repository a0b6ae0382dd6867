"""ALFWorld's games: official ones from a folder, and tasks generated on its floor plans.

A generated task takes everything except the places of its objects from ALFWorld's package: the domain, the grammar, the
goals, the rooms, their receptacles, the objects, and which receptacle may hold which object.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from functools import lru_cache
from pathlib import Path
from random import Random
from typing import Any, NamedTuple

from ragen.errors import ConfigError
from ragen.extras import needs, package_folder

TASK_TYPES = {
    1: "pick_and_place_simple",
    2: "look_at_obj_in_light",
    3: "pick_clean_then_place_in_recep",
    4: "pick_heat_then_place_in_recep",
    5: "pick_cool_then_place_in_recep",
    6: "pick_two_obj_and_place",
}
"""ALFWorld's task types, by number."""

GENERATED = {"train": 3553, "valid_seen": 140, "valid_unseen": 134}
"""Number of generated tasks per split, the same as of official games."""

GOAL = "UNKNOWN GOAL"
"""The placeholder for the task in ALFWorld's grammar."""

_HELD_OUT = 6  # scenes of each kind of room that only valid_unseen uses
_STATES = {3: ("Cleanable", "SinkBasin"), 4: ("Heatable", "Microwave"), 5: ("Coolable", "Fridge")}
_LAMPS = ("DeskLamp", "FloorLamp")
_LAMPS_STAND_ON = ("Desk", "SideTable", "Dresser", "DiningTable", "CoffeeTable", "Shelf")
_SEVERAL = ("CounterTop", "Shelf", "SideTable", "StoveBurner")
_START = "loc_bar_0_bar_0_bar_0_bar_0_start"
_SIGNS = {"|": "_bar_", "+": "_plus_", "-": "_minus_", ".": "_dot_", ",": "_comma_"}


class HouseholdGame(NamedTuple):
    """The game of an episode.

    Attributes:
        domain: The domain, in PDDL.
        problem: The problem, in PDDL.
        grammar: The texts, in TextWorld's grammar language, with :data:`GOAL` in place of the task.
        task: The task, in words.
        kind: The name of the task type; "" if the file does not contain it.
    """

    domain: str
    problem: str
    grammar: str
    task: str
    kind: str


# Official games


@lru_cache(maxsize=8)
def official_games(data: str, split: str, task_types: tuple[int, ...]) -> tuple[str, ...]:
    """The files of a split, selected as by ALFWorld (solvable, no slicing, no movable receptacles) and sorted.

    Raises:
        ConfigError: There are none.
    """
    kinds = {TASK_TYPES[number] for number in task_types}
    folders = [Path(data) / split, Path(data) / "json_2.1.1" / split]
    folder = next((each for each in folders if each.is_dir()), folders[0])
    found = []
    for path in sorted(folder.rglob("game.tw-pddl")):
        if "movable" in str(path.relative_to(folder)) or "Sliced" in str(path.relative_to(folder)):
            continue
        if _kind_of(path) in kinds and json.loads(path.read_text("utf-8")).get("solvable"):
            found.append(str(path))
    if not found:
        raise ConfigError(
            f"alfworld: env_config key data={data!r}: no game.tw-pddl of the task types {sorted(task_types)} in "
            f"{folder}. `alfworld-download` fetches the official games; data: null plays generated tasks."
        )
    return tuple(found)


def _kind_of(path: Path) -> str:
    try:
        return str(json.loads((path.parent / "traj_data.json").read_text("utf-8"))["task_type"])
    except (OSError, ValueError, KeyError, TypeError):
        return ""


def read_game(path: str) -> HouseholdGame:
    """Read an official game.

    Raises:
        ConfigError: The file cannot be read.
    """
    try:
        data = json.loads(Path(path).read_text("utf-8"))
        grammar, beginning = data["grammar"], "Your task is to: "
        task = grammar.partition(beginning)[2].partition('"')[0].rstrip(".")
        plain = grammar.replace(f"{beginning}{task}", f"{beginning}{GOAL}", 1)
        return HouseholdGame(data["pddl_domain"], data["pddl_problem"], plain, task, _kind_of(Path(path)))
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise ConfigError(f"alfworld: {path} is not a game of ALFWorld: {error!r}.") from error


# Generated tasks


@contextmanager
def surroundings_kept() -> Iterator[None]:
    """Undo the side effects of ALFWorld and the planner on this process.

    ALFWorld sets an environment variable; the planner's translator changes ``sys.argv`` and replaces ``sys.stdout``.
    """
    argv, output, environ = sys.argv, sys.stdout, dict(os.environ)
    sys.argv = argv[:1]
    try:
        yield
    finally:
        sys.argv, sys.stdout = argv, output
        for name in os.environ.keys() - environ.keys():
            del os.environ[name]
        os.environ.update(environ)


def alfworld_folder() -> Path:
    """The folder of ALFWorld's package, which is not imported: it would print and read the command line.

    Raises:
        MissingExtraError: ALFWorld is not installed.
    """
    with needs("alfworld", "the environment 'alfworld'"):
        return package_folder("alfworld")


@lru_cache(maxsize=64)
def _scene(number: int) -> tuple[tuple[str, ...], dict[str, list[float]]]:
    """The kinds of objects on a floor plan, and the positions of its openable receptacles."""
    base = alfworld_folder() / "gen" / "layouts" / f"FloorPlan{number}"
    types = json.loads(Path(f"{base}-objects.json").read_text("utf-8"))
    return tuple(sorted(types)), json.loads(Path(f"{base}-openable.json").read_text("utf-8"))


@lru_cache(maxsize=2)
def _package_text(name: str) -> str:
    return (alfworld_folder() / "data" / name).read_text("utf-8")


def domain() -> str:
    """ALFWorld's own domain, in PDDL."""
    return _package_text("alfred.pddl")


def grammar() -> str:
    """ALFWorld's texts, in TextWorld's grammar language, with :data:`GOAL` in place of the task."""
    return _package_text("alfred.twl2")


class _Room(NamedTuple):
    """A furnished scene: the positions of receptacles, the receptacle of each object, and the lamps."""

    receptacles: dict[str, list[float]]
    objects: dict[str, str]
    lamps: tuple[str, ...]


def generate(number: int, split: str, task_types: Iterable[int]) -> HouseholdGame:
    """Generate a task; tasks of different splits are drawn independently.

    Args:
        number: The number of the task within the split.
        split: ``"train"`` and ``"valid_seen"`` share scenes; ``"valid_unseen"`` has its own.
        task_types: Some of :data:`TASK_TYPES`.
    """
    with surroundings_kept():
        from alfworld.gen import constants, goal_library

    rng = Random(f"alfworld/{split}/{number}")
    numbers = sorted(task_types)
    while True:
        kind = rng.choice(numbers)
        scenes = list(constants.SCENE_TYPE[rng.choice(sorted(constants.GOALS_VALID[TASK_TYPES[kind]]))])
        scene = rng.choice(scenes[:_HELD_OUT] if split == "valid_unseen" else scenes[_HELD_OUT:])
        room = _furnished(rng, scene, constants)
        chosen = _goal(rng, kind, room, constants)
        if chosen is None:
            continue
        words = dict(zip(("obj", "recep", "toggle"), chosen, strict=True), mrecep="")
        goal = goal_library.gdict[TASK_TYPES[kind]]
        task = rng.choice(goal["templates"]).format(**{key: word.lower() for key, word in words.items()})
        problem = _problem(room, goal["pddl"].format(**words).replace("#", "-"), constants)
        return HouseholdGame(domain(), problem, grammar(), task, TASK_TYPES[kind])


def _kind(name: str) -> str:
    """The kind of an object; for a basin, the last part of its name, as in AI2-THOR: ``Sink|...|SinkBasin``."""
    parts = name.split("|")
    return parts[-1] if parts[-1].endswith("Basin") else parts[0]


def _furnished(rng: Random, scene: int, constants: Any) -> _Room:
    """Put objects on a floor plan into receptacles that may hold them."""
    types, opens = _scene(scene)
    receptacles: dict[str, list[float]] = dict(sorted(opens.items()))
    known = {_kind(each) for each in receptacles}
    fixed = constants.RECEPTACLES - constants.MOVABLE_RECEPTACLES_SET
    for kind in types:
        if kind in fixed and kind not in known and f"{kind}Basin" not in types:
            for count in range(rng.randint(1, 2) if kind in _SEVERAL else 1):
                place = [rng.randrange(-20, 20) / 4, rng.randrange(-20, 20) / 4, rng.choice([0, 90, 180, 270]), 30]
                whole, basin = (kind.removesuffix("Basin"), f"|{kind}") if kind.endswith("Basin") else (kind, "")
                receptacles[f"{whole}|{count}|0|{rng.randrange(100)}{basin}"] = place
    objects: dict[str, str] = {}
    for kind in types:
        if kind in constants.OBJECTS_SET and kind not in fixed:
            where = sorted(each for each in receptacles if kind in _may_hold(_kind(each), constants))
            for count in range(rng.randint(1, constants.MAX_NUM_OF_OBJ_INSTANCES) if where else 0):
                objects[f"{kind}|{count}|{rng.randrange(1000)}"] = rng.choice(where)
    lamps = tuple(kind for kind in _LAMPS if kind in types)
    for kind in lamps:
        where = sorted(each for each in receptacles if _kind(each) in _LAMPS_STAND_ON)
        if where and not any(_kind(each) == kind for each in objects):
            objects[f"{kind}|0|0"] = rng.choice(where)
    return _Room(receptacles, objects, lamps)


def _may_hold(receptacle: str, constants: Any) -> Any:
    return constants.VAL_RECEPTACLE_OBJECTS.get(receptacle, ())


def _goal(rng: Random, kind: int, room: _Room, constants: Any) -> tuple[str, str, str] | None:
    """The wanted kind of object, the kind of receptacle, and the lamp; None if the room has no such goal."""
    state, tool = _STATES.get(kind, ("", ""))
    holders = {_kind(each) for each in room.receptacles}
    places: dict[str, list[str]] = {}
    for name, where in room.objects.items():
        places.setdefault(_kind(name), []).append(_kind(where))
    if tool and tool not in holders:
        return None
    targets = [
        each
        for each in sorted(places)
        if each not in room.lamps
        and each not in constants.MOVABLE_RECEPTACLES_SET
        and (not state or each in constants.VAL_ACTION_OBJECTS[state])
        and (kind != 6 or len(places[each]) > 1)
    ]
    if kind == 2:
        lamps = [each for each in room.lamps if each in places]
        return (rng.choice(targets), "", rng.choice(lamps)) if lamps and targets else None
    pairs = [
        (target, holder)
        for target in targets
        for holder in sorted(holders - {tool})
        if target in _may_hold(holder, constants) and holder not in places[target]
    ]
    return (*rng.choice(pairs), "") if pairs else None


def _plain(name: str) -> str:
    """A name in the characters that PDDL allows, encoded as ALFWorld decodes it."""
    for sign, word in _SIGNS.items():
        name = name.replace(sign, word)
    return name


def _location(place: list[float]) -> str:
    x, z, rotation, horizon = place[:4]
    return _plain(f"loc|{int(x * 4)}|{int(z * 4)}|{int(rotation / 90)}|{int(horizon)}")


def _problem(room: _Room, goal: str, constants: Any) -> str:
    """The room and the goal in PDDL."""
    locations = sorted({_location(place) for place in room.receptacles.values()})
    facts = [f"(atLocation agent1 {_START})"]
    for name, place in room.receptacles.items():
        kind, plain = _kind(name), _plain(name)
        facts += [f"(receptacleType {plain} {kind}Type)", f"(receptacleAtLocation {plain} {_location(place)})"]
        facts += [f"(openable {plain})"] if kind in constants.OPENABLE_CLASS_SET else []
    for name, holder in room.objects.items():
        kind, plain = _kind(name), _plain(name)
        facts += [f"(objectType {plain} {kind}Type)", f"(inReceptacle {plain} {_plain(holder)})"]
        facts += [f"(objectAtLocation {plain} {_location(room.receptacles[holder])})"]
        facts += [f"({'toggleable' if kind in room.lamps else 'pickupable'} {plain})"]
        for state in ("Cleanable", "Heatable", "Coolable", "Sliceable"):
            facts += [f"({state.lower()} {plain})"] if kind in constants.VAL_ACTION_OBJECTS[state] else []
        facts += [f"(isReceptacleObject {plain})"] if kind in constants.MOVABLE_RECEPTACLES_SET else []
    holders = sorted({_kind(each) for each in room.receptacles})
    kinds = sorted({_kind(each) for each in room.objects})
    facts += [f"(canContain {a}Type {b}Type)" for a in holders for b in kinds if b in _may_hold(a, constants)]
    things = [
        "agent1 - agent",
        *(f"{each}Type - otype" for each in kinds),
        *(f"{each}Type - rtype" for each in holders),
    ]
    things += [f"{_plain(each)} - object" for each in sorted(room.objects)]
    things += [f"{_plain(each)} - receptacle" for each in sorted(room.receptacles)]
    things += [f"{each} - location" for each in [*locations, _START]]
    sections = ["(:domain alfred)", "(:objects", *things, ")", "(:init", *facts, ")", goal.strip()]
    text = "\n".join(["(define (problem p)", *sections])
    return _closed(text)


def _closed(text: str) -> str:
    """The text with balanced parentheses, since some goals in ALFWorld's library close the problem as well."""
    missing = text.count("(") - text.count(")")
    return text + ")" * missing if missing >= 0 else text.rstrip()[:missing]
