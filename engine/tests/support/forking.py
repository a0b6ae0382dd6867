"""Kinds of environments with turns to play, and what forks are held against: the same turns, played straight."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from envlanes import EnvSpec
from envlanes.ragen.turn import TEXT, Turn
from support.faulty_envs import GlobalDraws, Pictures, Walk


@dataclass(frozen=True)
class Kind:
    """A kind of environment.

    Attributes:
        env_class: Its class.
        config: What it is built with.
        words: What may be played; the names of its actions if left out.
    """

    env_class: Any
    config: Any
    words: Sequence[str] = ()

    def spec(self, env_id: int) -> EnvSpec:
        return EnvSpec.of(self.env_class, self.config, env_id, game=TEXT)

    def turn(self, rng: random.Random) -> Turn:
        """One to three actions, now and then one that is none."""
        words = self.words or tuple((self.config.action_lookup or {1: "A", 2: "B"}).values())
        return Turn(tuple(rng.choice([*words, "nonsense"]) for _ in range(rng.randint(1, 3))), 9)


class Saves(Walk):
    """Declares snapshots, and that nothing else brings it back."""

    replayable = False

    def save(self) -> Any:
        return self.random.getstate(), self.steps, self.place

    def load(self, state: Any) -> None:
        self.random = random.Random()
        generator, self.steps, self.place = state
        self.random.setstate(generator)


class SavesDraws(GlobalDraws):
    """Draws from the global generators, whose states are saved for it."""

    replayable = False

    def save(self) -> Any:
        return self.steps, self.place

    def load(self, state: Any) -> None:
        self.steps, self.place = state


TOYS = {
    "walk": Kind(Walk, None, ("a", "bb")),
    "draws": Kind(GlobalDraws, None, ("a", "bb")),
    "pictures": Kind(Pictures, None, ("a", "bb")),
    "saves": Kind(Saves, None, ("a", "bb")),
    "saves draws": Kind(SavesDraws, None, ("a", "bb")),
}


def straight(kind: Kind, seed: int, turns: Sequence[Turn]) -> list[tuple[Any, ...]]:
    """Results of an environment that nobody forks: the digest of its first observation, and its turns."""
    from envlanes import Engine, Settings

    with Engine([kind.spec(0)], Settings(use_lanes=False)) as engine:
        engine.reset({0: seed})
        for turn in turns:
            engine.play({0: turn})
        journal = engine.records[0].journal
        return [(journal.start.digest,), *[played.recorded for played in journal.entries]]


def drawn(kind: Kind, count: int, seed: int) -> list[Turn]:
    """So many turns, drawn from a seed."""
    rng = random.Random(seed)
    return [kind.turn(rng) for _ in range(count)]


def recorded(result: Any) -> tuple[Any, ...]:
    """Of a result, what a replay has to give again."""
    return TEXT.record(result)
