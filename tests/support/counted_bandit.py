"""The bandit of RAGEN 2026, whose levels depend on how many bandits its process had built before."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import dataclass, field

from ragen.env.bandit.config import BanditEnvConfig
from ragen.env.bandit.env import BanditEnv

_built: Iterator[int] = itertools.count()


def forget_built() -> None:
    """Count from 0 again, as a new process does."""
    global _built
    _built = itertools.count()


@dataclass
class CountedBanditConfig:
    """Configuration of :class:`CountedBandit`; each one made has the next number."""

    split: str
    number: int = field(default_factory=lambda: next(_built))
    action_lookup: dict[int, str] | None = None


class CountedBandit(BanditEnv):
    """A bandit that adds its number to every seed."""

    config_class = CountedBanditConfig  # type: ignore[assignment]

    def __init__(self, config: CountedBanditConfig) -> None:
        super().__init__(BanditEnvConfig(split=config.split, internal_seed=config.number))  # type: ignore[arg-type]
