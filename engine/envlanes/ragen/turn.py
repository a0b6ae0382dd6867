"""The text game: the definition of a turn, and the one function that plays it.

A turn depends only on the environment's state and the actions, and its result shares no memory with the environment, so
that the result is the same whether it stays in its process or is sent through a pipe.
"""

from __future__ import annotations

import hashlib
import inspect
import operator
from collections.abc import Mapping
from contextlib import suppress
from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np

from envlanes.episode.game import Game, Options, named
from envlanes.episode.values import IMMUTABLE, copied, is_immutable
from envlanes.ragen.step import LARGEST_REWARD, check_success, checked_done, checked_reward
from envlanes.returned import REWARD, wrong, wrong_step

SHOWN = "text, a uint8 array of shape (H, W, 3), or a list of such arrays"
Observation = Any  # str, or a list of uint8 arrays of shape (H, W, 3)

_NUMBERS = frozenset({int, float, bool})
_TRUTHS = frozenset({bool, type(None)})
RAW_REWARD = "raw_reward"  # of which a turn's info has the sum over its actions: trainers report it beside the reward


class Turn(NamedTuple):
    """The actions of a turn.

    Attributes:
        actions: The model's actions, as names or text.
        actions_left: Maximum number of actions that the episode still allows.
    """

    actions: tuple[str, ...]
    actions_left: int


class TurnResult(NamedTuple):
    """The result of a turn.

    Attributes:
        executed: Keys (or texts) of the executed actions.
        malformed: Whether an action was unknown, or none was left to execute: the turn earns the format penalty.
        reward: Sum over the executed actions; int 0 if there were none.
        done: Whether the game is over.
        info: The infos of the executed actions merged; later values win.
        observation: Text, or a list of ``(H, W, 3)`` uint8 arrays.
        digest: The observation's digest, which a replay must reproduce; see :func:`digest_observation`.
    """

    executed: list[Any]
    malformed: bool
    reward: float
    done: bool
    info: dict[str, Any]
    observation: Observation
    digest: Any


def failed_turn(text: str, observation: Observation) -> TurnResult:
    """The turn of an environment that failed: nothing executed, the game over, the failure in the info."""
    return TurnResult([], False, 0, True, {"env_error": text}, observation, None)


def play_turn(env: Any, turn: Turn, sums_raw_reward: bool = True) -> TurnResult:
    """Play one turn: map the action names, execute the allowed actions, sum rewards, merge infos, render.

    Its info has the sum of the actions' ``raw_reward``, a float; what is not a number counts as 0.

    Args:
        env: The environment, between two turns of an episode that is not over.
        turn: The actions.
        sums_raw_reward: False leaves ``raw_reward`` as any other info: the last action's, if it has one.

    Returns:
        The result, which shares no mutable object with the environment.

    Raises:
        ReturnError: The environment returned values of the wrong form, or the turn's reward is not a finite number.
        Exception: The environment may raise anything.
    """
    actions, actions_left = turn
    known = map_actions(env, actions)
    malformed = not known or len(known) != len(actions)
    executed: list[Any] = []
    reward: float = 0
    done = False
    info: dict[str, Any] = {}
    raw_reward = 0.0
    for action in known[:actions_left]:
        returned = env.step(action)
        try:
            _, gained, done, extra = returned
            reward += gained
            info.update(extra)
            goes_on = not done
        except Exception as error:  # values of a user's classes may raise anything
            raise wrong_step(env, returned) from error
        executed.append(action)
        if RAW_REWARD in extra:
            with suppress(TypeError, ValueError):
                raw_reward += float(extra[RAW_REWARD])
        if not goes_on:
            break
    # Each check asks for the usual types first: together, the checks take a tenth of the shortest turn.
    if type(info.get("success")) not in _TRUTHS:
        check_success(env, info)
    if sums_raw_reward:
        info[RAW_REWARD] = raw_reward
    if type(reward) not in _NUMBERS:
        number = checked_reward(env, reward)
        reward = (
            copied(reward) if getattr(reward, "shape", None) == () else number
        )  # a scalar remains NumPy's or torch's
    elif not -LARGEST_REWARD <= reward <= LARGEST_REWARD:
        raise wrong(env, "step", reward, REWARD, "reward")
    if done is not True and done is not False:
        done = checked_done(env, done)
    digest = observation = env.render()
    if type(observation) is not str:
        observation = _observed(env, observation)
        digest = digest_observation(observation)
    if not IMMUTABLE.issuperset(map(type, info.values())) and not all(map(is_immutable, info.values())):
        info = {key: copied(value) for key, value in info.items()}
    return named(TurnResult, (executed, malformed, reward, done, info, observation, digest))


class RagenGame(Game):
    """Text environments, with ``reset(seed, mode)``, ``step(action)`` that returns four values, and ``render()``."""

    recorded = ("reward", "done", "digest")
    # No methods of its own where each call counts.
    record = staticmethod(operator.itemgetter(*map(TurnResult._fields.index, recorded)))  # type: ignore[assignment]
    play = staticmethod(play_turn)  # type: ignore[assignment]

    def reset(self, env: Any, seed: int | None, options: Options) -> Observation:
        """Reset with the seed and the options that ``reset`` takes (``mode``); returns the rendered observation."""
        env.reset(seed=seed, **options_for(env, options))
        return observe(env)

    def digest(self, observation: Observation) -> Any:
        """The text itself, or digests of the images."""
        return digest_observation(observation)

    def observe(self, env: Any) -> Observation:
        """The rendered observation."""
        return observe(env)


TEXT = RagenGame()


def action_lookup(env: Any) -> dict[Any, str] | None:
    """The environment's action keys with their names, if its configuration has such a table."""
    return getattr(getattr(env, "config", None), "action_lookup", None)


def map_actions(env: Any, actions: tuple[str, ...]) -> list[Any]:
    """Turn action names into the environment's action keys; unknown names are left out.

    Names are case-insensitive. An environment whose configuration has no ``action_lookup`` gets the texts unchanged.
    """
    lookup = action_lookup(env)
    if lookup is None:
        return list(actions)
    keys = {name.lower(): key for key, name in lookup.items()}
    return [keys[name] for name in map(str.lower, actions) if name in keys]


def observe(env: Any) -> Observation:
    """Render the environment, into text or a list of ``(H, W, 3)`` uint8 arrays of its own.

    Raises:
        ReturnError: The environment rendered something else.
    """
    return _observed(env, env.render())


def _observed(env: Any, rendered: Any) -> Observation:
    if isinstance(rendered, str):
        return str.__str__(rendered)  # of a class of its own, a plain one: it must not run code where it is unpickled
    return [
        _as_image(env, image, rendered) for image in (rendered if isinstance(rendered, list | tuple) else [rendered])
    ]


def _as_image(env: Any, image: Any, rendered: Any) -> Any:
    try:
        pixels = np.array(image, copy=True)
    except Exception as error:  # rows of different lengths
        raise wrong(env, "render", rendered, SHOWN) from error
    if pixels.ndim != 3 or pixels.shape[2] != 3 or pixels.dtype != np.uint8:
        of_shape = f"; this has shape {pixels.shape} and dtype {pixels.dtype}" if pixels.ndim else ""
        raise wrong(env, "render", rendered, SHOWN + of_shape)
    return pixels


def digest_observation(observation: Observation) -> Any:
    """An observation's digest for the journal: the text itself, or a tuple of the images' BLAKE2b digests."""
    if isinstance(observation, str):
        return observation
    return tuple(_hash(image.tobytes() + repr(image.shape).encode()) for image in observation)


def state_hash(digest: Any) -> str:
    """A hash of an observation's digest, as 32 hexadecimal digits."""
    shown = digest if isinstance(digest, str) else "\n".join(digest)
    return _hash(shown.encode("utf-8", "surrogatepass"))


def _hash(data: bytes) -> str:
    return hashlib.blake2b(data, digest_size=16).hexdigest()


def options_for(env: Any, options: Mapping[str, Any] | None) -> dict[str, Any]:
    """Those of the options that the environment's ``reset`` takes."""
    taken = _taken(type(env).reset)
    return {key: value for key, value in (options or {}).items() if taken is None or key in taken}


@lru_cache(maxsize=256)  # reading a signature takes longer than a cheap environment's reset
def _taken(reset: Any) -> frozenset[str] | None:
    parameters = inspect.signature(reset).parameters.values()
    if any(parameter.kind is parameter.VAR_KEYWORD for parameter in parameters):
        return None
    return frozenset(parameter.name for parameter in parameters)
