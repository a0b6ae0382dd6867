"""Episodes as they went, recorded so that they can be compared."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from ragen.parallel.episode.host import ResetOrder
from ragen.parallel.episode.journal import difference
from ragen.parallel.episode.outcome import Outcome
from ragen.parallel.episode.turn import Turn
from ragen.parallel.lanes.orders import Play, Reset
from ragen.tools.json_codec import decode, encode
from ragen.tools.sandbox import Mishap, Sandbox

MANY_ACTIONS = 99  # actions left: turns are not cut short
OPTIONS = {"mode": "train"}

Turns = Sequence[tuple[str, ...]]


class Step(NamedTuple):
    """What one reset or turn gave, in plain form; the observation as its digest."""

    digest: Any
    reward: Any = None
    done: bool = False
    info: Any = None

    @classmethod
    def of(cls, result: Any) -> Step:
        """What a turn gave."""
        return cls(*(decode(encode(getattr(result, name))) for name in cls._fields))


@dataclass
class Recording:
    """Episodes of one environment.

    Attributes:
        episodes: For each seed the reset and the turns.
        mishap: What ended the recording before its time.
        where: At which call that was.
    """

    episodes: dict[int, list[Step]] = field(default_factory=dict)
    mishap: Mishap | None = None
    where: str = ""

    def difference(self, other: Recording) -> str:
        """Where the other one first differs, in words; "" if nowhere."""
        for seed, steps in self.episodes.items():
            for turn, (mine, theirs) in enumerate(zip(steps, other.episodes.get(seed, ()), strict=False), start=-1):
                if found := difference(turn, Step._fields, mine, theirs):
                    return f"with seed {seed}, {found.describe()}"
        if other.mishap is not None:
            return f"{other.mishap.kind} in {other.where}: {other.mishap.text}"
        return ""

    def play(self, sandbox: Sandbox, seed: int, turns: Turns, reset: Outcome, end: float) -> None:
        """Play an episode whose reset gave this; no turn but the first is begun after ``end``."""
        if isinstance(reset.value, Mishap):
            self.mishap, self.where = reset.value, f"the reset with seed {seed}"
            return
        steps = self.episodes[seed] = [Step(decode(encode(reset.value.digest)))]
        for index, actions in enumerate(turns):
            if index and time.monotonic() > end:
                return
            result = sandbox.do(Play([(reset.env_id, Turn(actions, MANY_ACTIONS))]))[0].value
            if isinstance(result, Mishap):
                self.mishap, self.where = result, f"turn {index} ({', '.join(map(repr, actions))}) of seed {seed}"
                return
            steps.append(Step.of(result))
            if result.done:
                return


def record(
    sandbox: Sandbox, env_ids: Sequence[int], plan: Mapping[int, Turns], budget: float = float("inf")
) -> list[Recording]:
    """Play episodes.

    Args:
        sandbox: Where the environments live.
        env_ids: The environments: they are reset together, and then play one after the other.
        plan: The turns to play, by seed.
        budget: Seconds after which no further turn is begun; one reset and one turn are played in any case.

    Returns:
        A recording of each.
    """
    recordings, end = [Recording() for _ in env_ids], time.monotonic() + budget
    for position, (seed, turns) in enumerate(plan.items()):
        if any(recording.mishap for recording in recordings) or (position and time.monotonic() > end):
            break
        resets = sandbox.do(Reset([ResetOrder(env_id, seed, OPTIONS) for env_id in env_ids]))
        for recording, reset in zip(recordings, resets, strict=True):
            recording.play(sandbox, seed, turns, reset, end)
    return recordings


def within(budget: float, count: int) -> Iterator[int]:
    """1, 2, ... up to this count, as long as the budget (seconds) lasts; 1 in any case."""
    end = time.monotonic() + budget
    for number in range(1, count + 1):
        if number > 1 and time.monotonic() > end:
            return
        yield number
