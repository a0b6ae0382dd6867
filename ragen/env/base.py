"""The interface of an environment: reset, step, render, close, and a few declarations with safe defaults.

Any class with these four methods works, whether or not it derives from :class:`BaseEnv`; the base classes provide
defaults for the declarations and names for the action space. One environment object plays one episode at a time, on one
thread, in one process. After ``reset(seed)``, everything must be a function of the configuration, the seed and the
actions alone; this allows an episode to be rebuilt in another process.
"""

from __future__ import annotations

import random
from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Any, ClassVar, Literal

CostHint = Literal["cheap", "heavy", "io"]

StepResult = tuple[Any, float, bool, dict[str, Any]]
"""Observation, reward, whether the episode is over, and info."""


class BaseEnv(ABC):
    """One game, played one episode at a time.

    A class may declare snapshots by defining two methods::

        def save(self):         # returns a picklable value: the whole state, including generators
            return self.board, self.rng.getstate()

        def load(self, state):  # restores a state saved by another environment of this class and configuration
            self.board, generator = state
            self.rng.setstate(generator)

    :func:`snapshots` makes both for a class whose state is in a few attributes. State lost with a killed worker is then
    loaded instead of replayed, and forks and moves start from snapshots. The value is pickled immediately, so it may
    share objects that the environment changes later. A subclass that adds state must define both methods again: those
    of a base class do not count.

    Class attributes (declarations; the defaults are safe for classes that do not set them):
        config_class: The dataclass to which ``custom_envs.<Tag>.env_config`` is converted.
        replayable: Whether seed and actions rebuild an episode exactly. False for live services. If this depends on the
            configuration, the object may have an attribute of the same name.
        uses_global_rng: Whether any method may draw from the global ``random`` or ``numpy.random`` generators. If true,
            their states are kept separate for each environment around every call.
        cost_hint: The cost of a turn, which ``use_multiprocessing: auto`` then need not measure: ``"cheap"`` stays in
            the main process, ``"heavy"`` goes to as many workers as processors, ``"io"`` (mostly waits) to more.
    """

    config_class: ClassVar[type | None] = None
    replayable: ClassVar[bool] = True
    uses_global_rng: ClassVar[bool] = True
    cost_hint: ClassVar[CostHint | None] = None

    config: Any

    @abstractmethod
    def reset(self, seed: int | None = None, mode: str | None = None) -> Any:
        """Begin a new episode.

        Args:
            seed: Determines the level and all later randomness, 0 to 2**32 - 1; None draws one from the system.
            mode: ``"train"``, ``"val"`` or ``"test"``, for environments that split their data.

        Returns:
            The first observation, the same as ``render()``.
        """

    @abstractmethod
    def step(self, action: Any) -> StepResult:
        """Execute one action.

        Args:
            action: A key of ``config.action_lookup`` if the configuration has one, else the model's own text.

        Returns:
            Observation, reward, whether the episode is over, and info. Numeric and boolean info values become metrics;
            ``success`` says whether the goal is reached.
        """

    @abstractmethod
    def render(self, mode: str | None = None) -> Any:
        """The current observation: text, or an ``(H, W, 3)`` uint8 array (or a list of them) in image modes.

        Args:
            mode: Overrides ``config.render_mode`` for this call.
        """

    def close(self) -> None:
        """Release files, sockets and processes; may be called twice."""
        return None

    def example_action(self, rng: random.Random) -> str:
        """An action that a player could take now, in the form a model would write it; checks and suites play these.

        Override it if neither the names of an ``action_lookup`` nor generic texts exercise the environment, for example
        because actions are commands, queries or programs. It may read the state, but must not change it.

        Args:
            rng: The only source of randomness: equal states and generators give equal actions.

        Returns:
            The action; "" (the default) leaves the choice to the player.
        """
        return ""

    def rollout_info(self) -> dict[str, Any]:
        """A small dict of information that the finished rollout needs, such as the correct answer."""
        return {}


def snapshots(
    *names: str, after: Callable[[Any], None] | None = None
) -> tuple[Callable[[Any], dict[str, Any]], Callable[[Any, dict[str, Any]], None]]:
    """``save`` and ``load`` for a class whose state is in a few attributes.

    For example, in the class's body: ``save, load = snapshots("board", "steps")``.

    Args:
        names: The attributes; None is saved for one that is not set.
        after: Called with the environment once its attributes are restored, to derive what is not saved.
    """

    def save(self: Any) -> dict[str, Any]:
        return {name: getattr(self, name, None) for name in names}

    def load(self: Any, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        if after is not None:
            after(self)

    return save, load


class BaseDiscreteActionEnv(BaseEnv):
    """An environment whose actions are integers, named by ``config.action_lookup``."""

    @abstractmethod
    def step(self, action: int) -> StepResult:
        """Execute the action with this number; see :meth:`BaseEnv.step`."""

    def get_all_actions(self) -> list[int]:
        """The numbers of all actions, in the order of the configuration's lookup."""
        return list(self.config.action_lookup)


class BaseLanguageBasedEnv(BaseEnv):
    """An environment whose actions are free text."""

    @abstractmethod
    def step(self, action: str) -> StepResult:
        """Execute the action that the text asks for; any string is legal. See :meth:`BaseEnv.step`."""


class BaseEnvConfig(ABC):  # as in RAGEN, without abstract methods
    """The base class of configurations written for RAGEN; ours are plain dataclasses.

    Attributes:
        invalid_act: The action used in place of an invalid one; a dataclass may set its own.
        invalid_act_score: Its score.
    """

    invalid_act: Any
    invalid_act_score: float

    def __init__(self) -> None:
        """Set both to RAGEN's defaults."""
        self.invalid_act = ""
        self.invalid_act_score = 0
