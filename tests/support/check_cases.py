"""Small environments with one fault each, for the tests of crash reports, replays and checks."""

from __future__ import annotations

import math
import os
import random
import signal
import threading
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar

from ragen.env.base import BaseDiscreteActionEnv, BaseLanguageBasedEnv

LOOKUP = {1: "Left", 2: "Right"}


@dataclass
class WalkConfig:
    action_lookup: dict[int, str] = field(default_factory=lambda: dict(LOOKUP))
    goal: int = 30
    fails_at: int = 2
    spot: tuple[int, int] = (1, 2)
    flag: str = ""
    thing: Any = None


class Walk(BaseDiscreteActionEnv):
    """A walk on a line, without a fault; the others are made from it."""

    config_class = WalkConfig
    uses_global_rng: ClassVar[bool] = False

    def __init__(self, config: WalkConfig | None = None) -> None:
        self.config = config or WalkConfig()

    def reset(self, seed: int | None = None, mode: str | None = None) -> str:
        self.rng = random.Random(seed)
        self.place = self.rng.randrange(10)
        self.steps = 0
        return self.render()

    def step(self, action: int) -> tuple[str, float, bool, dict[str, Any]]:
        self.steps += 1
        self.place += -1 if action == 1 else 1 + self.rng.randrange(3)
        self.misbehave()
        done = self.place >= self.config.goal
        return self.render(), float(done), done, {"success": done, "steps": self.steps, "note": "text"}

    def misbehave(self) -> None:
        """What goes wrong in a step."""

    def is_time(self) -> bool:
        return self.steps >= self.config.fails_at

    def render(self, mode: str | None = None) -> str:
        return f"at {self.place} of {self.config.goal}"


class Saves(Walk):
    def save(self) -> Any:
        return self.place, self.steps, self.rng.getstate()

    def load(self, state: Any) -> None:
        self.place, self.steps, generator = state
        self.rng = random.Random()
        self.rng.setstate(generator)


class SavesTooLittle(Walk):
    """Saves what a reset sets, and not what turns change."""

    def save(self) -> Any:
        return self.place, 0, self.rng.getstate()

    def load(self, state: Any) -> None:
        Saves.load(self, state)  # type: ignore[arg-type]


class HasItsLevelElsewhere(Walk):
    """Keeps the one rule, and what its reset sets outside of the object, where only its id leads."""

    levels: ClassVar[dict[int, int | None]] = {}

    def reset(self, seed: int | None = None, mode: str | None = None) -> str:
        self.levels[id(self)] = seed
        return super().reset(seed, mode)

    def step(self, action: int) -> tuple[str, float, bool, dict[str, Any]]:
        shown, _, done, info = super().step(action)
        return shown, float(self.levels.get(id(self)) or -1), done, info


class ResetsSlowly(Walk):
    def reset(self, seed: int | None = None, mode: str | None = None) -> str:
        time.sleep(0.002)
        return super().reset(seed, mode)


class Raises(Walk):
    def misbehave(self) -> None:
        if self.is_time():
            raise ValueError("the rope is too short")


class RaisesWhileAFlagIsThere(Walk):
    def misbehave(self) -> None:
        if self.is_time() and Path(self.config.flag).exists():
            raise ValueError("the flag is there")


class RaisesInReset(Walk):
    def reset(self, seed: int | None = None, mode: str | None = None) -> str:
        raise KeyError("no such level")


class NamesActionsAtReset(Walk):
    """Its actions have other names in every episode."""

    def reset(self, seed: int | None = None, mode: str | None = None) -> str:
        self.config.action_lookup = {1: f"back {seed}", 2: f"forth {seed}"}
        return super().reset(seed, mode)


class Hangs(Walk):
    def misbehave(self) -> None:
        while self.is_time():
            time.sleep(0.01)


class HangsInItsSecondEpisode(Walk):
    def __init__(self, config: WalkConfig | None = None) -> None:
        super().__init__(config)
        self.episodes = 0

    def reset(self, seed: int | None = None, mode: str | None = None) -> str:
        self.episodes += 1
        return super().reset(seed, mode)

    def misbehave(self) -> None:
        if self.episodes > 1:
            threading.Event().wait()


class Exits(Walk):
    def misbehave(self) -> None:
        if self.is_time():
            os._exit(7)


class Killed(Walk):
    def misbehave(self) -> None:
        if self.is_time():
            os.kill(os.getpid(), signal.SIGSEGV)


class Prints(Walk):
    def misbehave(self) -> None:
        print("a word from the environment", flush=True)
        os.write(2, b"and another\n")


class TellsTheTime(Walk):
    def render(self, mode: str | None = None) -> str:
        return f"{super().render()} at {time.time()}"


class TellsAHash(Walk):
    def render(self, mode: str | None = None) -> str:
        return f"{super().render()} under {hash('the moon') % 1000}"


class TellsItsProcess(Walk):
    def render(self, mode: str | None = None) -> str:
        return f"{super().render()} {os.getpid()}"


class RemembersEpisodes(Walk):
    episodes: ClassVar[int] = 0

    def __init__(self, config: WalkConfig | None = None) -> None:
        super().__init__(config)
        self.played = 0

    def reset(self, seed: int | None = None, mode: str | None = None) -> str:
        self.played += 1
        return super().reset(seed, mode)

    def render(self, mode: str | None = None) -> str:
        return f"{super().render()}, episode {self.played}"


class SharesItsGenerator(Walk):
    """All objects draw from one generator, which every reset seeds."""

    shared: ClassVar[random.Random] = random.Random()

    def reset(self, seed: int | None = None, mode: str | None = None) -> str:
        shown = super().reset(seed, mode)
        self.rng = self.shared
        self.rng.seed(seed)
        return shown

    def step(self, action: int) -> tuple[str, float, bool, dict[str, Any]]:
        shown, reward, done, info = super().step(action)
        return shown, reward + self.rng.random(), done, info


class SharesItsLevel(Walk):
    """The class holds the level of the last reset."""

    level: ClassVar[int | None] = None

    def reset(self, seed: int | None = None, mode: str | None = None) -> str:
        type(self).level = seed
        return super().reset(seed, mode)

    def render(self, mode: str | None = None) -> str:
        return f"{super().render()} in level {self.level}"


class DrawsUndeclared(Walk):
    """Says that it leaves the global generators alone, and does not; no two episodes agree by chance."""

    def misbehave(self) -> None:
        self.place += random.random()


class DrawsDeclared(Walk):
    uses_global_rng: ClassVar[bool] = True

    def misbehave(self) -> None:
        import numpy as np

        self.place += random.randrange(2) + np.random.randint(2)


class Echo(BaseLanguageBasedEnv):
    """Takes any text."""

    uses_global_rng: ClassVar[bool] = False

    def __init__(self, config: Any = None) -> None:
        self.config = config

    def reset(self, seed: int | None = None, mode: str | None = None) -> str:
        self.said = f"seed {seed}"
        return self.said

    def step(self, action: str) -> tuple[str, float, bool, dict[str, Any]]:
        self.said = f"you said {action}"
        return self.said, 0.5, False, {"length": len(action)}

    def render(self, mode: str | None = None) -> str:
        return self.said


class Locked(Echo):
    """Takes only one word, which is another one in each turn."""

    def reset(self, seed: int | None = None, mode: str | None = None) -> str:
        self.word = random.Random(seed).randrange(1000)
        return super().reset(seed, mode)

    def example_action(self, rng: random.Random) -> str:
        return rng.choice([f"say {self.word}", f"whisper {self.word}"])

    def step(self, action: str) -> tuple[str, float, bool, dict[str, Any]]:
        if not action.endswith(f" {self.word}"):
            raise ValueError("wrong word")
        self.word += 1
        return super().step(action)[0], 1.0, False, {"success": True}


class ResetsAsGymnasium(Walk):
    """``reset`` returns observation and info."""

    def reset(self, seed: int | None = None, mode: str | None = None) -> Any:
        return super().reset(seed, mode), {}


class ReturnsNothing(Walk):
    """Nothing but ``render`` tells the state: nothing is hidden."""

    def reset(self, seed: int | None = None, mode: str | None = None) -> None:
        super().reset(seed, mode)

    def step(self, action: int) -> tuple[None, float, bool, dict[str, Any]]:
        return None, *super().step(action)[1:]


class ReturnsALock(Walk):
    """A part of its info that no other process can have."""

    def step(self, action: int) -> Any:
        text, reward, done, info = super().step(action)
        return text, reward, done, {**info, "guard": threading.Lock()}


class EarnsNaN(Walk):
    def step(self, action: int) -> Any:
        text, reward, done, info = super().step(action)
        return text, float("nan") if self.is_time() else reward, done, info


class IgnoresItsSeed(Walk):
    """Draws its level from a generator that no reset seeds."""

    def reset(self, seed: int | None = None, mode: str | None = None) -> str:
        return super().reset(random.Random().randrange(10**6), mode)


class ReturnsOddValues(Walk):
    """Values without equality, or that are not equal to themselves."""

    def step(self, action: int) -> Any:
        import numpy as np

        text, reward, done, info = super().step(action)
        odd = {"nan": math.nan, "array": np.arange(self.place), "object": Shown(), "set": set("abcdefgh")}
        return text, reward, done, {**info, **odd}


class Shown:
    """A value without equality."""
