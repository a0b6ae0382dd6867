"""What an environment is: reset, step, render, close, and a few declarations with safe defaults.

Any class with these four methods works, whether or not it derives from :class:`BaseEnv`; the base classes give the
declarations their defaults and the action space its name. One environment object plays one episode at a time, on one
thread, and lives in one process; ``reset(seed)`` must make everything that follows a function of the configuration,
the seed and the actions alone. That is what lets an episode be rebuilt in another process.
"""

from __future__ import annotations

import random
from abc import ABC, abstractmethod
from typing import Any, ClassVar, Literal

CostHint = Literal["cheap", "heavy", "io"]


class BaseEnv(ABC):
    """One game, played one episode at a time.

    A class may declare snapshots, with two methods of its own::

        def save(self):         # a picklable value that is the whole state, its generators included
            return self.board, self.rng.getstate()

        def load(self, state):  # stand where another environment of this class and configuration was saved
            self.board, generator = state
            self.rng.setstate(generator)

    What is lost with a killed worker is then loaded instead of played again, forks and moves begin there, and where
    resets are dear one reset serves all members of a group. The value is pickled before anything else happens to the
    environment, so it may share what the environment goes on changing. A subclass that adds to the state has to declare
    both again: those of a base class do not count.

    Class attributes (declarations; the defaults are safe for code that knows nothing of them):
        config_class: The dataclass that ``custom_envs.<Tag>.env_config`` is turned into.
        replayable: Whether seed and actions rebuild an episode exactly. False for live services. Where that
            depends on the configuration, its object may have an attribute of the same name.
        uses_global_rng: Whether any method may draw from the global ``random`` or ``numpy.random`` generators. Where
            true, their states are kept apart for each environment around every call.
        cost_hint: What a step costs, for placement before anything was measured.
        overlap_waits: Whether environments of a worker wait at the same time, each in a thread of its own, where the
            tag does not say otherwise.
    """

    config_class: ClassVar[type | None] = None
    replayable: ClassVar[bool] = True
    uses_global_rng: ClassVar[bool] = True
    cost_hint: ClassVar[CostHint | None] = None
    overlap_waits: ClassVar[bool] = False

    config: Any

    @abstractmethod
    def reset(self, seed: int | None = None, mode: str | None = None) -> Any:
        """Begin a new episode.

        Args:
            seed: Decides the level and everything random after it, 0 to 2**32 - 1; None draws one from the system.
            mode: ``"train"``, ``"val"`` or ``"test"``, for environments that split their data.

        Returns:
            The first observation, the same as ``render()``.
        """

    @abstractmethod
    def step(self, action: Any) -> tuple[Any, float, bool, dict[str, Any]]:
        """Execute one action.

        Args:
            action: A key of ``config.action_lookup`` where the configuration has one, else the model's own text.

        Returns:
            Observation, reward, whether the episode is over, and info. Info values that are numbers or booleans become
            metrics; ``success`` says whether the goal is reached.
        """

    @abstractmethod
    def render(self, mode: str | None = None) -> Any:
        """The current observation: text, or an ``(H, W, 3)`` uint8 array (or a list of them) in image modes.

        Args:
            mode: Overrides ``config.render_mode`` for this call.
        """

    def close(self) -> None:
        """Give back files, sockets and processes; may be called twice."""
        return None

    def example_action(self, rng: random.Random) -> str:
        """An action that a player could take now, as a model would write it: ``ragen check`` plays these.

        Override it where neither names in an ``action_lookup`` nor generic texts say anything about the environment:
        a command, a query, a program. It may look at the state, and changes nothing.

        Args:
            rng: Decides which one, and nothing else does: equal states and generators give equal actions.

        Returns:
            The action; "" (the default) leaves the choice to the player.
        """
        return ""

    def rollout_info(self) -> dict[str, Any]:
        """A small dict that the finished rollout needs from the environment, such as the correct answer."""
        return {}


class BaseDiscreteActionEnv(BaseEnv):
    """An environment whose actions are the integers that ``config.action_lookup`` gives names to."""

    @abstractmethod
    def step(self, action: int) -> tuple[Any, float, bool, dict[str, Any]]:
        """Execute the action with this number; see :meth:`BaseEnv.step`."""

    def get_all_actions(self) -> list[int]:
        """The numbers of all actions, in the order of the configuration's lookup."""
        return list(self.config.action_lookup)


class BaseLanguageBasedEnv(BaseEnv):
    """An environment whose actions are free text."""

    @abstractmethod
    def step(self, action: str) -> tuple[Any, float, bool, dict[str, Any]]:
        """Execute the action that the text asks for; any string is legal. See :meth:`BaseEnv.step`."""


class BaseEnvConfig(ABC):  # as in RAGEN: nothing has to be written
    """What configurations of environments written for RAGEN derive from; ours are plain dataclasses.

    Attributes:
        invalid_act: The action that stands for one that is none; a dataclass may set its own.
        invalid_act_score: What that one scores.
    """

    invalid_act: Any
    invalid_act_score: float

    def __init__(self) -> None:
        """Set both to RAGEN's defaults."""
        self.invalid_act = ""
        self.invalid_act_score = 0
