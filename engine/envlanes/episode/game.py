"""The interface of a kind of game to the engine: how its environments are built, reset, played and compared.

The engine, its journals and its workers carry any picklable action and any observation. Everything they do to an
environment goes through a :class:`Game`, in the main process and in workers alike, such as
:class:`~envlanes.gym.game.GymGame`.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import Any, NamedTuple

from envlanes.episode import generators
from envlanes.episode.global_rng import state_in_place
from envlanes.episode.values import copied

Options = Mapping[str, Any] | None

named = tuple.__new__  # named(TurnResult, fields) makes a named tuple at half the cost of TurnResult(*fields)


class EpisodeStart(NamedTuple):
    """The beginning of an episode, for its journal.

    Attributes:
        seed: Seed of the episode; None if the environment's own generators continued.
        options: Further arguments of ``reset``.
        digest: Digest of the first observation.
        before: States of the global and of the environment's own generators before the reset, as far as no seed decides
            them; see :meth:`~envlanes.episode.journal.EpisodeJournal.can_be_rebuilt`.
    """

    seed: int | None
    options: dict[str, Any] | None
    digest: Any = None
    before: Any = None


def declares_snapshots(env_class: Any) -> bool:
    """Whether a class itself declares ``save`` and ``load``; a base class's do not count: a subclass adds state."""
    return {"save", "load"} <= getattr(env_class, "__dict__", {}).keys()


class Game(ABC):
    """One kind of game; a stateless object, sent to workers by its class.

    An episode may begin within a turn: the turn's result then has an attribute ``began``, an :class:`EpisodeStart`.

    Attributes:
        recorded: Names of the result's fields that a replay must reproduce.
    """

    recorded: tuple[str, ...] = ("reward", "done", "digest")

    def build(self, spec: Any) -> Any:
        """Build the environment of an :class:`~envlanes.episode.spec.EnvSpec`, with a copy of its configuration."""
        return spec.env_class() if spec.config is None else spec.env_class(copied(spec.config))

    @abstractmethod
    def reset(self, env: Any, seed: int | None, options: Options) -> Any:
        """Begin an episode; returns the first observation, which shares no memory with the environment."""

    def begin(self, env: Any, seed: int | None, options: Any) -> tuple[Any, EpisodeStart]:
        """Begin an episode, for its journal; with the environment's state of the global generators in place."""
        own = self.generator_state(env, is_seeded=seed is not None)
        before = (state_in_place(), own) if seed is None else (None, own) if own else None
        observation = self.reset(env, seed, options)
        return observation, EpisodeStart(seed, options, self.digest(observation), before)

    @abstractmethod
    def play(self, env: Any, action: Any) -> Any:
        """Play one turn; returns a named tuple with ``observation`` and all ``recorded`` fields, detached likewise."""

    @abstractmethod
    def digest(self, observation: Any) -> Any:
        """The digest of an observation for the journal: small, picklable, equal only for equal observations."""

    def record(self, result: Any) -> tuple[Any, ...]:
        """The values of the recorded fields of a result."""
        return tuple([getattr(result, name) for name in self.recorded])

    def apply(self, env: Any, change: Any) -> Any:
        """Apply a change to an environment between two turns; returns the change's result."""
        return change.apply(env)

    def has_snapshots(self, env: Any) -> bool:
        """Whether the environment's own class declares ``save`` and ``load``."""
        return declares_snapshots(type(env))

    def saves_midway(self, env: Any) -> bool:
        """Whether snapshots may be taken at any time, not only after a reset."""
        return True

    def save(self, env: Any) -> Any:
        """The result of ``save()``: a picklable value with its whole state, generators included."""
        return env.save()

    def load(self, env: Any, state: Any) -> None:
        """Restore a state from :meth:`save` in a newly built environment of the same class and configuration."""
        env.load(state)

    def observe(self, env: Any) -> Any:
        """The environment's observation between two turns; None if it cannot be queried."""
        return None

    def generator_state(self, env: Any, is_seeded: bool = False) -> Any:
        """The states of the environment's own generators before a reset, as far as a seed does not decide them.

        Empty if none was found; None if something else is known to decide the episode.
        """
        return generators.states(env, of_spaces=is_seeded)
