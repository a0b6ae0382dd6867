"""TextWorld's games: which one a seed draws, and the compiled game, which is made once for a machine.

TextWorld writes a game as Inform 7 source, which Inform 7 and Inform 6 compile to a story of the Z-machine. That takes
seconds, and nothing else of an episode does, so compiled games are kept in the machine's cache.
"""

from __future__ import annotations

import hashlib
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache
from importlib import metadata
from pathlib import Path
from random import Random
from typing import Any, NamedTuple

from ragen.extras import needs
from ragen.resources import environment_variable, machine_cache

FORMAT = 1
"""Of the games; another one compiles them anew."""

LEVELS = (1, 2, 3)
ATTEMPTS = 20
"""Seeds that are tried before a game counts as one that cannot be made; most are made with the first."""

_SPLITS = {"train": "train", "val": "valid", "test": "test"}  # as TextWorld's cooking games name them
_STORY = "game.z8"
_COIN = {1: 5, 2: 105, 3: 110}
_TREASURE = {1: 7, 2: 14, 3: 22}
_COOKING: dict[int, dict[str, Any]] = {
    1: {"recipe": 1, "take": 1, "go": 1, "open": False, "cook": False, "cut": False},
    2: {"recipe": 2, "take": 1, "go": 6, "open": True, "cook": True, "cut": False},
    3: {"recipe": 3, "take": 2, "go": 9, "open": True, "cook": True, "cut": True},
}


class Chosen(NamedTuple):
    """Which game an episode plays.

    Attributes:
        family: A key of :data:`FAMILIES`.
        level: How hard it is.
        split: ``"train"``, ``"val"`` or ``"test"``.
        number: Which one of these.
        hints: Whether it says all steps in the beginning.
    """

    family: str
    level: int
    split: str
    number: int
    hints: bool


def _cooking(chosen: Chosen, seed: int, options: Any) -> Any:
    from textworld.challenges.tw_cooking import cooking

    settings = {**_COOKING[chosen.level], "drop": False, "recipe_seed": seed, "split": _SPLITS[chosen.split]}
    return cooking.make(settings, options)


def _coin(chosen: Chosen, seed: int, options: Any) -> Any:
    from textworld.challenges.tw_coin_collector import coin_collector

    return coin_collector.make({"level": _COIN[chosen.level]}, options)


def _treasure(chosen: Chosen, seed: int, options: Any) -> Any:
    from textworld.challenges.tw_treasure_hunter import treasure_hunter

    return treasure_hunter.make({"level": _TREASURE[chosen.level]}, options)


FAMILIES: dict[str, Callable[[Chosen, int, Any], Any]] = {"cooking": _cooking, "coin": _coin, "treasure": _treasure}
"""What makes a game of each family, by name."""


def choose(
    seed: int, split: str, families: tuple[str, ...], levels: tuple[int, ...], games: int, hints: bool
) -> Chosen:
    """The game of a seed.

    Args:
        seed: Of the episode; of ``games`` seeds in a row no two give the same game.
        split: ``"train"``, ``"val"`` or ``"test"``: no game of one is a game of another.
        families: Some of :data:`FAMILIES`.
        levels: Some of :data:`LEVELS`.
        games: How many there are.
        hints: Whether it says all steps in the beginning.
    """
    number = seed % games
    rng = Random(f"textworld/{split}/{number}")
    return Chosen(rng.choice(families), rng.choice(levels), split, number, hints)


def seed_of(chosen: Chosen, attempt: int) -> int:
    """The seed that TextWorld's generator is given; those of splits, families and levels have nothing in common."""
    text = f"{chosen.split}/{chosen.family}/{chosen.level}/{chosen.number}/{attempt}"
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:4], "big") >> 1


def story(chosen: Chosen) -> Path:
    """The compiled game, which the first process of the machine to ask for it compiles.

    Raises:
        MissingExtraError: TextWorld is not installed.
    """
    key = {"format": FORMAT, "textworld": _version(), **chosen._asdict()}
    return machine_cache("textworld", key, lambda folder: _compile(chosen, folder)) / _STORY


@cache
def _version() -> str:
    """TextWorld's; read once, since the file is large beside a turn."""
    return metadata.version("textworld")


def _compile(chosen: Chosen, folder: Path) -> None:
    with needs("textworld", "a game of TextWorld"):
        from textworld import GameOptions
        from textworld.generator import CouldNotCompileGameError, QuestGenerationError, compile_game

    for attempt in range(ATTEMPTS):
        options = GameOptions()
        options.path, options.seeds = str(folder / _STORY), seed_of(chosen, attempt)
        options.grammar.only_last_action = not chosen.hints
        try:
            game = FAMILIES[chosen.family](chosen, options.seeds["map"], options)
            with _no_home():
                compile_game(game, options)
        except (QuestGenerationError, CouldNotCompileGameError):
            if attempt + 1 == ATTEMPTS:
                raise
        else:
            break
    (folder / _STORY).with_suffix(".ni").unlink(missing_ok=True)


@contextmanager
def _no_home() -> Iterator[None]:
    """Inform 7 writes its documentation into the home folder, of all processes into the same files: give it another."""
    with tempfile.TemporaryDirectory() as folder, environment_variable("HOME", folder):
        yield
