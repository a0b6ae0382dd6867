"""``limit``: what a run may use before it ends in order, to go on with another day.

``limit.cost`` (dollars) and ``limit.tokens`` (of prompts and replies) are those of all runs of an output folder;
``limit.minutes`` is the time of this run.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Self

from ragen.errors import ConfigError, LimitReachedError
from ragen.settings import key, read, setting

NAMES = ("cost", "tokens", "minutes")


@dataclass(frozen=True)
class Limits:
    """What may be used; None is no limit.

    Attributes:
        cost: Dollars.
        tokens: Tokens of prompts and replies.
        minutes: Minutes.
    """

    SECTION: ClassVar[str] = "limit"
    cost: float | None = key(None)
    tokens: float | None = key(None)
    minutes: float | None = key(None)

    @classmethod
    def read(cls, config: Any) -> Self:
        """Read ``limit``.

        Raises:
            ConfigError: It has another key, a value is not above 0, or costs are limited and no price is known.
        """
        given = setting(config, "limit", Mapping, {})
        for name in given:
            if name not in NAMES:
                raise ConfigError(f"configuration key 'limit.{name}' is not known; 'limit' has {', '.join(NAMES)}.")
        limits = read(cls, config)
        for name, value in vars(limits).items():
            if value is not None and not value > 0:
                raise ConfigError(f"configuration key 'limit.{name}' is {value}; expected more than 0, or null.")
        prices = setting(config, "actor.openai.price", Mapping, {})
        if limits.cost is not None and not any(price for price in prices.values()):
            raise ConfigError(
                "configuration key 'limit.cost' needs prices: give 'actor.openai.price.prompt' and "
                "'actor.openai.price.completion', in dollars per million tokens."
            )
        return limits

    def reached(self, usage: Mapping[str, float], seconds: float) -> str | None:
        """Which limit is reached, in words; None if none is.

        Args:
            usage: What all runs have used.
            seconds: How long this run has taken.
        """
        tokens = usage.get("prompt_tokens", 0) + usage.get("completion_tokens", 0)
        if self.cost is not None and usage.get("cost", 0) >= self.cost:
            return f"limit.cost={self.cost:g}: ${usage['cost']:,.4f} are spent"
        if self.tokens is not None and tokens >= self.tokens:
            return f"limit.tokens={self.tokens:g}: {tokens:,.0f} tokens are used"
        if self.minutes is not None and seconds >= 60 * self.minutes:
            return f"limit.minutes={self.minutes:g}: the time is over"
        return None

    def watch(self, used: Callable[[], Mapping[str, float]]) -> Callable[[], None]:
        """What raises as soon as a limit is reached, counted from now.

        Args:
            used: Tells what all runs have used.

        Returns:
            A function that raises :class:`~ragen.errors.LimitReachedError`.
        """
        start = time.monotonic()
        has_any = any(value is not None for value in vars(self).values())

        def check() -> None:
            if has_any and (reached := self.reached(used(), time.monotonic() - start)):
                raise LimitReachedError(reached)

        return check
