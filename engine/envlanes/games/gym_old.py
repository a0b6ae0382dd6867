"""Games with the older interface of ``gym`` before version 0.26; that package is not needed.

Their spaces may be of ``gym``'s own classes, unknown to gymnasium: these are recognized by name and converted.
"""

from __future__ import annotations

from typing import Any

from envlanes.episode.game import Options
from envlanes.episode.values import copied, options_taken
from envlanes.errors import EnvError
from envlanes.games.gym_game import GymGame
from envlanes.returned import wrong_step


class GymOldGame(GymGame):
    """Environments whose ``reset`` returns only an observation, and ``step`` four values.

    The seed is passed by ``seed(seed)`` if ``reset`` does not accept one; of the options, those that ``reset`` accepts
    are passed, such as ``task``. Truncation is read from ``info["TimeLimit.truncated"]``. A ``reset`` that also returns
    an info, or a ``step`` that returns five values, is supported too.
    """

    def shown(self, env: Any, seed: int | None, options: Options) -> tuple[Any, Any]:
        """Reset it; returns observation and info."""
        taken = options_taken(type(env).reset)
        given = {key: value for key, value in copied(dict(options or {})).items() if taken is None or key in taken}
        if seed is not None:
            if taken is not None and "seed" in taken:
                given["seed"] = seed
            elif hasattr(env, "seed"):
                env.seed(seed)
        shown = env.reset(**given)
        return shown if _is_pair(shown) else (shown, {})

    def step(self, env: Any, action: Any) -> Any:
        """Step it; returns five values, with its end split into terminated and truncated."""
        values = env.step(action)
        try:
            if len(values) == 5:
                return values
            observation, reward, done, info = values
            over, truncated = bool(done), bool(info.get("TimeLimit.truncated", False))
        except Exception as error:  # whatever values of a user's classes raise
            raise wrong_step(env, values) from error
        return observation, reward, over and not truncated, over and truncated, info

    def spaces(self, env: Any) -> tuple[Any, Any]:
        """Its observation space and its action space.

        Raises:
            EnvError: One is of an unknown class.
        """
        return space_of(env.observation_space), space_of(env.action_space)


GYM_OLD = GymOldGame()


def space_of(space: Any) -> Any:
    """Convert a space of ``gym``'s to gymnasium's; returns gymnasium's spaces unchanged.

    Raises:
        EnvError: Its class is unknown.
    """
    import gymnasium.spaces as known

    name = type(space).__name__
    if isinstance(space, known.Space):
        return space
    if name == "Box":
        return known.Box(space.low, space.high, space.shape, space.dtype)
    if name == "Discrete":
        return known.Discrete(int(space.n), start=int(getattr(space, "start", 0)))
    if name == "MultiBinary":
        return known.MultiBinary(space.n)
    if name == "MultiDiscrete":
        return known.MultiDiscrete(space.nvec)
    if name == "Tuple":
        return known.Tuple([space_of(part) for part in space.spaces])
    if name == "Dict":
        return known.Dict({key: space_of(part) for key, part in space.spaces.items()})
    raise EnvError(
        f"{space!r} is a space of {type(space).__module__}, and none of Box, Discrete, MultiBinary, MultiDiscrete, "
        "Tuple and Dict: give the environment one of gymnasium's spaces."
    )


def _is_pair(shown: Any) -> bool:
    return isinstance(shown, tuple) and len(shown) == 2 and isinstance(shown[1], dict)
