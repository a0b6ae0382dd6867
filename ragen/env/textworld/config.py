"""The configuration of the TextWorld environment: which games, how many, how difficult, and what is shown."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

from ragen.env.checks import check, or_null, some_of
from ragen.env.textworld.games import FAMILIES, LEVELS


@dataclass
class TextWorldEnvConfig:
    """Configuration of :class:`~ragen.env.textworld.env.TextWorldEnv`.

    Attributes:
        families: Names of families of games; None for all.
        levels: Difficulties, some of 1, 2 and 3; see docs/textworld.md.
        games: Number of games in the train split; each takes seconds to compile, once per machine.
        val_games: Number of games in the val split, and in the test split.
        hints: Whether the first observation lists all steps; otherwise only the last one.
        theme: TextWorld's grammar: ``"house"``, rooms of a house in varied prose, or ``"basic"``, numbered rooms in the
            same few sentences, for small models.
        max_steps: Maximum number of commands per episode.
        reward: ``"share"``: the share of the game's points that a command scores; ``"all"``: 1 when the game is won.
        show_admissible: Whether observations list the admissible commands.
        render_mode: ``"text"``.
    """

    families: list[str] | None = None
    levels: list[int] = field(default_factory=lambda: [1])
    games: int = 100
    val_games: int = 20
    hints: bool = False
    theme: Literal["house", "basic"] = "house"
    max_steps: int = 50
    reward: Literal["share", "all"] = "share"
    show_admissible: bool = True
    render_mode: str = "text"

    def __post_init__(self) -> None:
        """Check every value.

        Raises:
            ConfigError: A value is invalid.
        """
        check(self, families=or_null(some_of(FAMILIES)), levels=some_of(LEVELS))
