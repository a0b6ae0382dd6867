"""Configuration of a cube: how far it is scrambled, how many turns there are, and whose back turn it has."""

from __future__ import annotations

from dataclasses import dataclass, field

from ragen.env.checks import check, integer, names_for
from ragen.env.rubikscube.cube import MOVES


@dataclass
class RubiksCubeEnvConfig:
    """Configuration of :class:`~ragen.env.rubikscube.env.RubiksCubeEnv`.

    Attributes:
        scramble_depth: Random quarter turns at ``reset``, 0 to 1000; two may cancel each other out.
        max_steps: Maximum number of turns.
        render_mode: ``"text"``.
        legacy_b_move: Whether to turn the back face as RAGEN 2026 does, which is impossible on a real cube; only for
            comparison with its rollouts.
        action_lookup: Number to name of the twelve quarter turns.
    """

    scramble_depth: int = 5
    max_steps: int = 20
    render_mode: str = "text"
    legacy_b_move: bool = False
    action_lookup: dict[int, str] = field(default_factory=lambda: dict(enumerate(MOVES, 1)))

    def __post_init__(self) -> None:
        """Check every value.

        Raises:
            ConfigError: A value is invalid.
        """
        check(self, scramble_depth=integer(0, 1000), action_lookup=names_for(range(1, 13)))
