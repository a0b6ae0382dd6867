"""Configuration of a game of 2048: the board's size, the new tiles, and how the score becomes a reward."""

from __future__ import annotations

from dataclasses import dataclass, field

from ragen.env.checks import check, integer, names_for, number


@dataclass
class Game2048EnvConfig:
    """Configuration of :class:`~ragen.env.game_2048.env.Game2048Env`.

    Attributes:
        size: Rows and columns of the board, 2 to 16.
        two_prob: Probability that a new tile is a 2 and not a 4, 0 to 1.
        use_log_reward: Whether a move that merges tiles worth ``m`` gives ``0.1 * log2(m + 1)`` and any other move 0;
            otherwise the reward is ``m``, or -0.1 if nothing moves.
        render_mode: ``"text"``.
        action_lookup: Number to name of the moves.
    """

    size: int = 4
    two_prob: float = 0.9
    use_log_reward: bool = True
    render_mode: str = "text"
    action_lookup: dict[int, str] = field(default_factory=lambda: {0: "Up", 1: "Right", 2: "Down", 3: "Left"})

    def __post_init__(self) -> None:
        """Check every value.

        Raises:
            ConfigError: A value is invalid.
        """
        check(self, size=integer(2, 16), two_prob=number(0, 1), action_lookup=names_for(range(4)))
