"""Configuration of a game of 2048: the board's size, the new tiles, and how the score becomes a reward."""

from __future__ import annotations

from dataclasses import dataclass, field

from ragen.env.checks import is_integer, is_number, require

_TYPE = "game_2048"


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
        require(is_integer(self.size, 2, 16), _TYPE, "size", self.size, "an integer from 2 to 16")
        require(is_number(self.two_prob, 0, 1), _TYPE, "two_prob", self.two_prob, "a number from 0 to 1")
        require(isinstance(self.use_log_reward, bool), _TYPE, "use_log_reward", self.use_log_reward, "true or false")
        require(self.render_mode == "text", _TYPE, "render_mode", self.render_mode, "'text'")
        keys = set(self.action_lookup) if isinstance(self.action_lookup, dict) else None
        require(keys == {0, 1, 2, 3}, _TYPE, "action_lookup", self.action_lookup, "names for 0, 1, 2 and 3")
