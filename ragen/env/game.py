"""The base of this package's environments: resets by seed, refusals, and text observations."""

from __future__ import annotations

import secrets
from abc import abstractmethod
from collections.abc import Hashable
from typing import Any, ClassVar

from envlanes.ragen.seeds import SEED_LIMIT, checked_seed
from ragen.env.base import BaseEnv, StepResult
from ragen.errors import InputError, StateError


class GameEnv(BaseEnv):
    """An environment with a configuration, whose subclasses begin episodes and play actions that fit.

    Attributes:
        seed: The seed of this episode; None before the first reset.
    """

    uses_global_rng = False
    seed_limit: ClassVar[int | None] = SEED_LIMIT
    seed: int | None = None

    def __init__(self, config: Any = None) -> None:
        """Take a configuration; None for the default one. Nothing is drawn before ``reset``."""
        assert self.config_class is not None
        self.config = config or self.config_class()

    def reset(self, seed: int | None = None, mode: str | None = None) -> Any:
        """Begin a new episode; see :meth:`BaseEnv.reset`.

        Raises:
            InputError: The seed is not an integer, or out of range.
        """
        if seed is None:
            seed = secrets.randbelow(SEED_LIMIT)
        number = checked_seed(seed, f"{type(self).__name__}: seed", self.seed_limit)
        self.seed = None
        self._begin(number, mode)
        self.seed = number
        return self.render()

    def step(self, action: Any) -> StepResult:
        """Execute one action; see :meth:`BaseEnv.step`.

        Raises:
            InputError: It is no key of the configuration's ``action_lookup``, or no text where there is no lookup.
            StateError: The environment was never reset.
        """
        name, lookup = type(self).__name__, getattr(self.config, "action_lookup", None)
        if self.seed is None:
            raise StateError(f"{name}: step was called before the first reset.")
        if lookup is None and not isinstance(action, str):
            raise InputError(f"{name}: step got action {action!r}, expected text.")
        if lookup is not None and not (isinstance(action, Hashable) and action in lookup):
            names = ", ".join(f"{key} ({text})" for key, text in lookup.items())
            raise InputError(f"{name}: step got action {action!r}, expected one of {names}.")
        return self._play(action)

    @abstractmethod
    def _begin(self, seed: int, mode: str | None) -> None:
        """Begin the episode of a seed."""

    @abstractmethod
    def _play(self, action: Any) -> StepResult:
        """Execute an action that fits."""


class TextGame(GameEnv):
    """A game that keeps its current observation, a text.

    Attributes:
        observation: The text that ``render()`` returns; set as an episode begins and by each action.
    """

    observation: str = ""

    def render(self, mode: str | None = None) -> str:
        """The current observation.

        Args:
            mode: None or ``"text"``.

        Raises:
            InputError: The mode is another one.
        """
        if mode not in (None, "text"):
            raise InputError(f"{type(self).__name__} shows text only; render got mode {mode!r}.")
        return self.observation


class PickledByConfig:
    """Pickled as its configuration: an unpickled environment must be reset."""

    config: Any

    def __getstate__(self) -> dict[str, Any]:
        """The configuration."""
        return {"config": self.config}

    def __setstate__(self, state: dict[str, Any]) -> None:
        """Build it again."""
        self.__init__(state["config"])  # type: ignore[misc]


class PickledBySnapshot(PickledByConfig):
    """Pickled as its configuration and a snapshot, without what belongs to its process."""

    save: Any
    load: Any

    def __getstate__(self) -> dict[str, Any]:
        """The configuration and a snapshot."""
        return {**super().__getstate__(), "saved": self.save()}

    def __setstate__(self, state: dict[str, Any]) -> None:
        """Build it again, and restore the snapshot."""
        super().__setstate__(state)
        self.load(state["saved"])
