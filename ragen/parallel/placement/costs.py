"""What playing cost, as it is given to the placement: times of calls, and of each tag's environments."""

from __future__ import annotations

import statistics
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

LATELY = 5  # episodes that tell what is usual: of five, two that were disturbed decide nothing
REMEMBERED = 300  # calls of an episode


class CallTime(NamedTuple):
    """What one call took that played turns, or reset environments.

    Attributes:
        seconds: Time of the whole call in the engine.
        turns: Turns of single environments, or resets.
        local_s: Seconds that main spent inside its environments.
        lane_s: The most seconds that one lane spent inside its environments.
        lanes: How many lanes took part.
        idle_s: Seconds that main waited for lanes, with nothing else to do.
    """

    seconds: float
    turns: int
    local_s: float = 0.0
    lane_s: float = 0.0
    lanes: int = 0
    idle_s: float = 0.0


class TagCosts(NamedTuple):
    """What all environments of a tag cost in an episode, wherever they were played.

    Attributes:
        seconds: Time inside environments, resets and turns together.
        reset_s: The part of it that resets took.
        waited_s: The part of it in which they did not compute.
        turns: Turns of single environments.
        build_s: What the dearest reset took longer than a usual one: building the environments.
    """

    seconds: float = 0.0
    reset_s: float = 0.0
    waited_s: float = 0.0
    turns: int = 0
    build_s: float = 0.0

    @property
    def per_turn(self) -> float:
        """Seconds of one turn of one environment, its part of the resets included."""
        return self.seconds / self.turns if self.turns else 0.0

    @property
    def waits(self) -> bool:
        """Whether the environments wait more than they compute."""
        return self.waited_s > 0.5 * self.seconds

    def describe(self) -> str:
        """The costs in words."""
        if not self.turns:
            return "nothing measured before this episode"
        turn = (self.seconds - self.reset_s) / self.turns
        waits = ", mostly waiting" if self.waits else ""
        return f"{turn * 1e6:.0f} us a turn, {self.reset_s * 1e3:.1f} ms of resets an episode{waits}"


@dataclass
class Episode:
    """What was measured in an episode so far; filled by the engine.

    Attributes:
        reset: The call that began it; None if it was not measured.
        calls: The calls that played turns, in order.
        tags: Costs by tag.
    """

    reset: CallTime | None = None
    calls: list[CallTime] = field(default_factory=list)
    tags: dict[str, TagCosts] = field(default_factory=dict)

    def count(self, call: CallTime) -> None:
        """Count a call that played turns; of very many the first ones tell enough."""
        if len(self.calls) < REMEMBERED:
            self.calls.append(call)

    def add(self, tag: str, seconds: float, waited_s: float = 0.0, turns: int = 0) -> None:
        """Count turns of a tag's environments, or resets where ``turns`` is 0."""
        old = self.tags.get(tag, TagCosts())
        reset_s = old.reset_s if turns else old.reset_s + seconds
        self.tags[tag] = TagCosts(old.seconds + seconds, reset_s, old.waited_s + waited_s, old.turns + turns)


class CostMeter:
    """What a tag usually costs in an episode: the median of the last ones."""

    def __init__(self) -> None:
        self._lately: list[TagCosts] = []
        self._dearest = 0.0
        self._resets = 0

    def note(self, costs: TagCosts) -> None:
        """Take down an episode; one in which no turn was played only tells what resets take."""
        self._dearest = max(self._dearest, costs.reset_s)
        self._resets += 1
        if costs.turns:
            self._lately = [*self._lately, costs][-LATELY:]

    def usual(self) -> TagCosts:
        """The costs of a usual episode; no turns while none was measured.

        What the first reset took is taken for building, since it is not known how much of it was.
        """
        if not self._lately:
            return TagCosts()
        usual = statistics.median_low(self._lately)
        if self._resets == 1:
            usual = usual._replace(seconds=usual.seconds - usual.reset_s, reset_s=0.0)
        return usual._replace(build_s=max(0.0, self._dearest - usual.reset_s))


def usual_costs(meters: Mapping[str, CostMeter]) -> dict[str, TagCosts]:
    """The usual costs of the tags that were measured."""
    costs = {tag: meter.usual() for tag, meter in meters.items()}
    return {tag: cost for tag, cost in costs.items() if cost.turns}
