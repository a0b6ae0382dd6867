"""Environments for the context manager's tests: it only looks at their configurations."""

from dataclasses import dataclass, field


@dataclass
class WalkConfig:
    grid_vocab: dict = field(default_factory=lambda: {"#": "wall", "P": "you"})
    action_lookup: dict = field(default_factory=lambda: {1: "Up", 2: "Down"})
    observation_format: str = "grid"
    size: int = 4


class Walk:
    config_class = WalkConfig


class Riddle:
    """Has no configuration class and no action names."""
