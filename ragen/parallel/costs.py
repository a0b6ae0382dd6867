"""What a tag's environments cost, measured where they were played."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import NamedTuple

from ragen.parallel.host import Outcome
from ragen.parallel.turn import Observation


class TagCosts(NamedTuple):
    """Costs of all environments of a tag in one episode.

    Attributes:
        seconds: Time inside environments, resets and turns together.
        reset_s: The part of it that resets took.
        waited: The part of it in which the environment did not compute.
        turns: Turns of single environments.
        calls: Calls in which they were played.
        size: Bytes of what the environments showed after those turns.
    """

    seconds: float = 0.0
    reset_s: float = 0.0
    waited: float = 0.0
    turns: float = 0.0
    calls: float = 0.0
    size: float = 0.0

    @property
    def per_turn(self) -> float:
        """Seconds of one turn of one environment."""
        return (self.seconds - self.reset_s) / self.turns if self.turns else 0.0

    @property
    def waits(self) -> bool:
        """Whether the environments wait more than they compute."""
        return self.waited > 0.5 * self.seconds

    def ahead(self, turns: int) -> TagCosts:
        """The costs of this many more turns like those played, with no reset."""
        factor = turns / self.calls if self.calls else 0.0
        seconds = (self.seconds - self.reset_s) * factor
        rest = (amount * factor for amount in (self.waited, self.turns, self.calls, self.size))
        return TagCosts(seconds, 0.0, *rest)

    def describe(self) -> str:
        """The costs in words."""
        if not self.turns:
            return "nothing measured yet"
        waits = ", mostly waiting" if self.waits else ""
        return f"{self.per_turn * 1e6:.0f} us a turn, {self.reset_s * 1e3:.1f} ms of resets an episode{waits}"


@dataclass
class CostMeter:
    """Adds up a tag's costs, and remembers those of episodes that are over, newer ones counting more.

    The first one, in which code runs for the first time, counts only until there is another.
    """

    _current: TagCosts = field(default_factory=TagCosts)
    _past: TagCosts | None = None
    _dearest: float = 0.0
    _episodes: int = 0

    def add_resets(self, outcomes: list[Outcome]) -> None:
        """Count resets."""
        seconds = sum([outcome.seconds for outcome in outcomes])
        waited = sum([outcome.waited for outcome in outcomes])
        now = self._current
        self._current = now._replace(
            seconds=now.seconds + seconds, reset_s=now.reset_s + seconds, waited=now.waited + waited
        )

    def add_call(self) -> None:
        """Count a call in which turns were played."""
        self._current = self._current._replace(calls=self._current.calls + 1)

    def add_turns(self, outcomes: list[Outcome]) -> None:
        """Count turns that one home played in a call."""
        seconds = sum([outcome.seconds for outcome in outcomes])
        waited = sum([outcome.waited for outcome in outcomes])
        size = _size(outcomes[0].value.observation) * len(outcomes)  # the others' are much the same
        now = self._current
        self._current = now._replace(
            seconds=now.seconds + seconds,
            waited=now.waited + waited,
            turns=now.turns + len(outcomes),
            size=now.size + size,
        )

    def end_episode(self) -> None:
        """Begin a new episode."""
        self._dearest = max(self._dearest, self._current.reset_s)
        if self._current.turns:
            self._episodes += 1
            past = self._past if self._past and self._episodes > 2 else self._current
            self._past = TagCosts(*(0.5 * (old + new) for old, new in zip(past, self._current, strict=True)))
        self._current = TagCosts()

    def episode(self) -> TagCosts:
        """Costs of a typical episode; zero turns while none was measured."""
        return self._past or TagCosts()

    def building(self) -> float:
        """Seconds that building and resetting all environments may take: what the dearest resets took."""
        return self._dearest

    def so_far(self) -> TagCosts:
        """Costs of the episode under way."""
        return self._current


def _size(observation: Observation) -> int:
    return len(observation) if isinstance(observation, str) else sum(image.nbytes for image in observation)
