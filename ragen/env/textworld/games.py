"""TextWorld's games: which one a seed selects, and its compilation, once per machine.

TextWorld writes a game as Inform 7 source, which Inform 7 and Inform 6 compile to a Z-machine story. This takes
seconds, far longer than anything else in an episode, so compiled games are kept in the machine's cache.
"""

from __future__ import annotations

import hashlib
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from importlib import import_module, metadata
from pathlib import Path
from random import Random
from typing import Any, NamedTuple

from ragen.cache import machine_cache
from ragen.env.resources import environment_variable
from ragen.extras import needs

FORMAT = 1
"""Version of the compiled games; part of the cache key."""

LEVELS = (1, 2, 3)

ATTEMPTS = 20
"""Number of seeds to try before generation is given up; most games are made with the first."""

_SPLITS = {"train": "train", "val": "valid", "test": "test"}  # the names in TextWorld's cooking games
_STORY = "game.z8"

FAMILIES: dict[str, tuple[str, list[dict[str, Any]]]] = {
    "cooking": (
        "tw_cooking.cooking",
        [
            {"recipe": 1, "take": 1, "go": 1, "open": False, "cook": False, "cut": False, "drop": False},
            {"recipe": 2, "take": 1, "go": 6, "open": True, "cook": True, "cut": False, "drop": False},
            {"recipe": 3, "take": 2, "go": 9, "open": True, "cook": True, "cut": True, "drop": False},
        ],
    ),
    "coin": ("tw_coin_collector.coin_collector", [{"level": 5}, {"level": 105}, {"level": 110}]),
    "treasure": ("tw_treasure_hunter.treasure_hunter", [{"level": 7}, {"level": 14}, {"level": 22}]),
}
"""TextWorld's module of each family, and its settings at each level."""


class Chosen(NamedTuple):
    """The game of an episode.

    Attributes:
        family: A key of :data:`FAMILIES`.
        level: Its difficulty, one of :data:`LEVELS`.
        split: ``"train"``, ``"val"`` or ``"test"``.
        number: Its number within the split.
        hints: Whether the first observation lists all steps.
        theme: TextWorld's grammar: ``"house"``, with names and descriptions, or ``"basic"``, with numbers.
    """

    family: str
    level: int
    split: str
    number: int
    hints: bool
    theme: str = "house"


def _generated(chosen: Chosen, seed: int, options: Any) -> Any:
    module, levels = FAMILIES[chosen.family]
    settings = {**levels[chosen.level - 1], "recipe_seed": seed, "split": _SPLITS[chosen.split]}
    return import_module(f"textworld.challenges.{module}").make(settings, options)


def choose(seed: int, mode: str | None, config: Any) -> Chosen:
    """Select the game of an episode.

    Args:
        seed: The episode's seed; ``games`` consecutive seeds select different games.
        mode: ``"val"``, ``"test"``, or anything else for training; these splits share no game.
        config: A :class:`~ragen.env.textworld.config.TextWorldEnvConfig`.
    """
    split = mode if mode in ("val", "test") else "train"
    number = seed % (config.games if split == "train" else config.val_games)
    rng = Random(f"textworld/{split}/{number}")
    family, level = rng.choice(sorted(config.families or FAMILIES)), rng.choice(sorted(config.levels))
    return Chosen(family, level, split, number, config.hints, config.theme)


def seed_of(chosen: Chosen, attempt: int) -> int:
    """The seed for TextWorld's generator, independent for each split, family, level, number and attempt."""
    text = f"{chosen.split}/{chosen.family}/{chosen.level}/{chosen.number}/{attempt}"
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:4], "big") >> 1


def story(chosen: Chosen) -> Path:
    """The compiled game; the first process on the machine that needs it compiles it.

    Raises:
        MissingExtraError: TextWorld is not installed.
    """
    key = {"format": FORMAT, "textworld": version(), **chosen._asdict()}
    return machine_cache("textworld", key, lambda folder: _compile(chosen, folder)) / _STORY


@cache
def version() -> str:
    """The installed version of TextWorld; cached, since reading it takes long compared with a turn."""
    return metadata.version("textworld")


def _compile(chosen: Chosen, folder: Path) -> None:
    with needs("textworld", "a game of TextWorld"):
        from textworld import GameOptions
        from textworld.generator import CouldNotCompileGameError, QuestGenerationError, compile_game

    for attempt in range(ATTEMPTS):
        options = GameOptions()
        options.path, options.seeds = str(folder / _STORY), seed_of(chosen, attempt)
        options.grammar.only_last_action, options.grammar.theme = not chosen.hints, chosen.theme
        try:
            game = _generated(chosen, options.seeds["map"], options)
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
    """Give Inform 7 a temporary home folder; processes would write its documentation into the same files."""
    with tempfile.TemporaryDirectory() as folder, environment_variable("HOME", folder):
        yield
