"""The game of environments with tasks: gymnasium's interface with five values, and the task in ``options``.

Environments with the older gym interface are supported too: ``reset(task=...)`` returns only the observation, ``step``
four values, and there is ``seed(seed)``.
"""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from typing import Any, NamedTuple

from ragen.games import detached, digest_of
from ragen.parallel import EnvSpec, Game, Options
from ragen.returned import FIVE, FOUR, checked_reward, wrong_reset, wrong_step


class Transition(NamedTuple):
    """The result of a step; shares no memory with the environment.

    Attributes:
        observation: The new observation.
        reward: The reward.
        terminated: Whether the episode is over by the rules.
        truncated: Whether it was cut short.
        info: The environment's info.
        digest: The observation's digest for the journal.
    """

    observation: Any
    reward: float
    terminated: bool
    truncated: bool
    info: dict[str, Any]
    digest: Any


def four(step: Transition) -> tuple[Any, float, bool, dict[str, Any]]:
    """A transition in the old interface: observation, reward, done, info."""
    info = {**step.info, "TimeLimit.truncated": True} if step.truncated and not step.terminated else step.info
    return step.observation, step.reward, step.terminated or step.truncated, info


class NotAValue(NamedTuple):
    """A placeholder for an attribute that does not leave the environment's process.

    Attributes:
        kind: The name of its class.
        is_method: Whether it can be called from outside.
    """

    kind: str
    is_method: bool


class Seat:
    """An environment and the operations on it, in its process."""

    def __init__(self, env: Any) -> None:
        """Wrap an environment."""
        self.env = env
        taken = inspect.signature(env.reset).parameters
        self._is_gymnasium = "options" in taken
        self._takes_task = "task" in taken or any(each.kind is each.VAR_KEYWORD for each in taken.values())
        unwrapped = getattr(env, "unwrapped", env)
        self._is_goal_state = getattr(unwrapped, "is_goal_state", None)

    def reset(self, seed: int | None, options: Options) -> Any:
        """Begin an episode; returns the first observation."""
        given = dict(options or {})
        if self._is_gymnasium:
            return self._first(self.env.reset(seed=seed, options=given or None))
        if seed is not None and hasattr(self.env, "seed"):
            self.env.seed(seed)
        shown = self.env.reset(task=given.get("task")) if self._takes_task else self.env.reset()
        return shown[0] if isinstance(shown, tuple) and len(shown) == 2 and isinstance(shown[1], dict) else shown

    def _first(self, returned: Any) -> Any:
        """The observation of what gymnasium's ``reset`` returned."""
        if not isinstance(returned, tuple) or len(returned) != 2:
            raise wrong_reset(self.env, returned)
        return returned[0]

    def step(self, action: Any) -> Transition:
        """Step.

        Raises:
            ReturnError: The environment's return value is not a transition, or its reward is not finite.
        """
        given = self.env.step(action)
        try:
            if len(given) == 4:
                observation, reward, done, info = given
                truncated = bool(done and info.get("TimeLimit.truncated", False))
                terminated = bool(done) and not truncated
            else:
                observation, reward, terminated, truncated, info = given
            terminated, truncated = bool(terminated), bool(truncated)
        except Exception as error:
            of_old = isinstance(given, tuple | list) and len(given) == 4
            raise wrong_step(self.env, given, FOUR if of_old else FIVE) from error
        reward = checked_reward(self.env, reward)
        if self._is_goal_state is not None and "is_goal_state" not in info:
            info = {**info, "is_goal_state": bool(self._is_goal_state())}
        seen = detached(observation)
        return Transition(seen, reward, terminated, truncated, detached(info), digest_of(seen))

    def attribute(self, name: str, subattrs: tuple[str, ...] = ()) -> Any:
        """An attribute of the environment or its wrapped one, and optionally an attribute of that value.

        Raises:
            AttributeError: There is none.
        """
        value = self._find(name)
        for each in subattrs:
            value = getattr(value, each)
        if callable(value):
            return NotAValue(type(value).__name__, is_method=True)
        return NotAValue(type(value).__name__, is_method=False) if hasattr(value, "step") else value

    def method(self, name: str, arguments: tuple[Any, ...], keywords: Mapping[str, Any]) -> Any:
        """Call a method of the environment or its wrapped one."""
        return self._find(name)(*arguments, **keywords)

    def _find(self, name: str) -> Any:
        for place in (self.env, getattr(self.env, "unwrapped", self.env)):
            if hasattr(place, name):
                return getattr(place, name)
        return self.env.get_wrapper_attr(name) if hasattr(self.env, "get_wrapper_attr") else getattr(self.env, name)

    def close(self) -> None:
        """Close the environment, if it can be."""
        close = getattr(self.env, "close", None)
        if close is not None:
            close()


class MetaGame(Game):
    """Environments with tasks, each in a :class:`Seat`."""

    recorded = ("reward", "terminated", "truncated", "digest")

    def build(self, spec: EnvSpec) -> Seat:
        """Build the environment."""
        return Seat(spec.env_class())

    def reset(self, env: Seat, seed: int | None, options: Options) -> Any:
        """Begin an episode of ``options["task"]``."""
        return detached(env.reset(seed, options))

    def play(self, env: Seat, action: Any) -> Transition:
        """Step once."""
        return env.step(detached(action))

    def digest(self, observation: Any) -> Any:
        """A digest of the observation's numbers."""
        return digest_of(observation)

    def generator_state(self, env: Seat) -> Any:
        """The states of the environment's own generators."""
        return super().generator_state(env.env)

    def restore_generator(self, env: Seat, state: Any) -> None:
        """Restore these states."""
        super().restore_generator(env.env, state)


META = MetaGame()
