"""What the engine has to know of a kind of game: how its environments are built, reset, played and compared.

The engine, its journals and its lanes carry any picklable action and any observation. What they do to an environment is
a :class:`Game`, in the main process and in workers alike: :class:`~ragen.parallel.episode.turn.RagenGame` for RAGEN's
text games, :class:`~ragen.games.gym_game.GymGame` for gymnasium's environments.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import Any, NamedTuple

from ragen.parallel.episode import generators

Options = Mapping[str, Any] | None


class EpisodeStart(NamedTuple):
    """How an episode began within a turn, for its journal.

    Attributes:
        seed: Seed of the episode; None where the environment's own generators went on.
        options: What else ``reset`` was given.
        digest: What stands for the first observation.
        before: State of the generators before, where there was no seed: the global ones and the environment's own.
    """

    seed: int | None
    options: dict[str, Any] | None
    digest: Any
    before: Any


class Game(ABC):
    """One kind of game; an object without state, which travels to workers by its class.

    Attributes:
        recorded: Names of the fields of a result that a replay has to give again.
        begins_in_turns: Whether an episode may begin within a turn: results have ``began`` then, None where it did not.
    """

    recorded: tuple[str, ...] = ("reward", "done", "digest")
    begins_in_turns: bool = False

    @abstractmethod
    def build(self, spec: Any) -> Any:
        """Build the environment of an :class:`~ragen.parallel.episode.spec.EnvSpec`, and change nothing of the spec."""

    @abstractmethod
    def reset(self, env: Any, seed: int | None, options: Options) -> Any:
        """Begin an episode; the first observation, which shares nothing with the environment."""

    @abstractmethod
    def play(self, env: Any, action: Any) -> Any:
        """Play one turn; a named tuple that has an ``observation`` and all ``recorded`` fields, detached likewise."""

    @abstractmethod
    def digest(self, observation: Any) -> Any:
        """What stands for an observation in a journal: small, picklable, equal only for equal observations."""

    def record(self, result: Any) -> tuple[Any, ...]:
        """The values of the recorded fields of a result."""
        return tuple([getattr(result, name) for name in self.recorded])

    def start(self, action: Any, result: Any) -> EpisodeStart | None:
        """Whether an episode began in a turn, and how; its journal then holds what follows and nothing before."""
        return None

    def apply(self, env: Any, change: Any) -> Any:
        """Do something to an environment between two turns; what it gave."""
        return change.apply(env)

    def has_snapshots(self, env: Any) -> bool:
        """Whether the environment's own class declares ``save`` and ``load``; a subclass may add to its state."""
        return {"save", "load"} <= vars(type(env)).keys()

    def saves_midway(self, env: Any) -> bool:
        """Whether its snapshots may be of any moment, and not of the one after a reset alone."""
        return True

    def save(self, env: Any) -> Any:
        """What ``save()`` gives: a picklable value that is its whole state, generators included."""
        return env.save()

    def load(self, env: Any, state: Any) -> None:
        """Have a just built environment stand where another of its class and configuration was saved."""
        env.load(state)

    def observe(self, env: Any) -> Any:
        """What an environment shows between two turns, where it can be asked for it; else None."""
        return None

    def without_place(self, action: Any) -> Any:
        """An action as another environment may be given it: without what says where this one's results go."""
        return action

    def generator_state(self, env: Any) -> Any:
        """The states of the environment's own generators before a reset without a seed, which decide the episode.

        Empty where none was found; None where it is known that something else decides.
        """
        return generators.states(env)

    def restore_generator(self, env: Any, state: Any) -> None:
        """Put states back that :meth:`generator_state` gave."""
        generators.restore(env, state)
