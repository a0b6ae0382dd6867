"""RAGEN's game: what a turn of a text game is, and the one function that plays it.

A turn is a function of the environment's state and what was asked alone, and what it returns shares nothing with the
environment, so that it reads the same in the process that played it as after a journey through a pipe.
"""

from __future__ import annotations

import hashlib
import operator
from functools import partial
from typing import Any, NamedTuple

from ragen.parallel.episode.game import Game, Options
from ragen.parallel.episode.returned import SHOWN, is_reward, wrong, wrong_step
from ragen.parallel.episode.values import IMMUTABLE, copied, is_immutable, options_taken

Observation = Any  # str, or a list of uint8 arrays of shape (H, W, 3)

RAW_REWARD = ("raw_reward",)  # what RAGEN of 2026 sums

named = tuple.__new__  # named(TurnResult, fields) makes a named tuple at half the cost of TurnResult(*fields)


class Turn(NamedTuple):
    """What is asked for a turn.

    Attributes:
        actions: What the model asked for, names or text.
        actions_left: Actions the episode still allows: no more are executed.
    """

    actions: tuple[str, ...]
    actions_left: int


class TurnResult(NamedTuple):
    """What a turn gave.

    Attributes:
        executed: Keys (or texts) of the executed actions.
        malformed: Whether an action was unknown, or none was left to execute: the turn earns the format penalty.
        reward: Sum over the executed actions; int 0 where none was.
        done: Whether the game is over.
        info: Merged over the executed actions, the last one wins.
        observation: Text, or a list of ``(H, W, 3)`` uint8 arrays.
        digest: What a replay must give again for the observation; see :func:`digest_observation`.
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


def play_turn(env: Any, turn: Turn, sums: tuple[str, ...] = ()) -> TurnResult:
    """Play one turn: map the action names, execute those that are allowed, sum, merge, render.

    Args:
        env: The environment, between two turns of an episode that is not over.
        turn: What is asked.
        sums: Entries of infos that are summed over the executed actions, where others are merged: floats, what is no
            number counting as 0. They are in each turn's info.

    Returns:
        The result, which shares no mutable object with the environment.

    Raises:
        ReturnError: The environment returned something that is no turn.
        Exception: Whatever the environment raises.
    """
    actions, actions_left = turn
    known = map_actions(env, actions)
    malformed = not known or len(known) != len(actions)
    executed: list[Any] = []
    reward: float = 0
    done = False
    info: dict[str, Any] = {}
    totals = dict.fromkeys(sums, 0.0) if sums else None
    for action in known[:actions_left]:
        returned = env.step(action)
        try:
            _, gained, done, extra = returned
            reward += gained
            info.update(extra)
            goes_on = not done
        except Exception as error:  # whatever values of a user's classes raise
            raise wrong_step(env, returned) from error
        executed.append(action)
        if totals is not None:
            totals = {name: total + _number(extra.get(name)) for name, total in totals.items()}
        if not goes_on:
            bool(info.get("success", False))  # what has no truth value is the environment's failure, not its reader's
            break
    if totals is not None:
        info.update(totals)
    if type(reward) not in IMMUTABLE:
        reward = _own_reward(env, reward)
    if done is not True and done is not False:
        done = _as_flag(env, done)
    digest = observation = env.render()
    if type(observation) is not str:
        observation = _observed(env, observation)
        digest = digest_observation(observation)
    if not IMMUTABLE.issuperset(map(type, info.values())):
        info = _detached(info)
    return named(TurnResult, (executed, malformed, reward, done, info, observation, digest))


class RagenGame(Game):
    """Environments with ``reset(seed, mode)``, ``step(action)`` of four values, and ``render()``, as RAGEN has them."""

    recorded = ("reward", "done", "digest")
    # No methods of its own where each call counts.
    record = staticmethod(operator.itemgetter(*map(TurnResult._fields.index, recorded)))  # type: ignore[assignment]
    play = staticmethod(play_turn)  # type: ignore[assignment]

    def build(self, spec: Any) -> Any:
        """Call the class, with a configuration of its own if there is one."""
        return spec.env_class() if spec.config is None else spec.env_class(copied(spec.config))  # which it may change

    def reset(self, env: Any, seed: int | None, options: Options) -> Observation:
        """Reset with the seed, and with the options that ``reset`` takes (``mode``); what it renders then."""
        taken = options_taken(type(env).reset)
        given = {key: value for key, value in (options or {}).items() if taken is None or key in taken}
        env.reset(seed=seed, **given)
        return observe(env)

    def digest(self, observation: Observation) -> Any:
        """A text itself; digests of images."""
        return digest_observation(observation)

    def observe(self, env: Any) -> Observation:
        """What it renders."""
        return observe(env)


class Ragen2026Game(RagenGame):
    """The same as RAGEN of 2026 plays it: a turn's info also has the sum of its actions' ``raw_reward``."""

    play = staticmethod(partial(play_turn, sums=RAW_REWARD))  # type: ignore[assignment]


RAGEN = RagenGame()
RAGEN_2026 = Ragen2026Game()


def action_lookup(env: Any) -> dict[Any, str] | None:
    """The environment's action keys with their names, if its configuration has such a table."""
    return getattr(getattr(env, "config", None), "action_lookup", None)


def map_actions(env: Any, actions: tuple[str, ...]) -> list[Any]:
    """Turn action names into the environment's action keys; unknown names are left out.

    Names are compared without regard to case. An environment whose configuration has no ``action_lookup`` gets the
    texts as they are. (RAGEN's ``_extract_map_valid_actions``.)
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
        return rendered if type(rendered) is str else str.__str__(rendered)
    images = rendered if isinstance(rendered, list | tuple) else [rendered]
    return [_as_image(env, image) for image in images]


def _as_image(env: Any, image: Any) -> Any:
    import numpy as np  # late: a text environment's worker need not load it

    try:
        pixels = np.array(image, copy=True)
    except Exception as error:  # rows of different lengths
        raise wrong(env, "render", image, SHOWN) from error
    if pixels.ndim != 3 or pixels.shape[2] != 3 or pixels.dtype != np.uint8:
        of_shape = f"; this has shape {pixels.shape} and dtype {pixels.dtype}" if pixels.ndim else ""
        raise wrong(env, "render", image, SHOWN + of_shape)
    return pixels


def _own_reward(env: Any, reward: Any) -> Any:
    """A reward of another type than Python's own numbers, detached."""
    if not is_reward(reward):
        raise wrong(env, "step", reward, "a number", "reward")
    return copied(reward)


def _as_flag(env: Any, done: Any) -> bool:
    if done is None:
        raise wrong(env, "step", done, "True or False", "done")
    return bool(done)


def digest_observation(observation: Observation) -> Any:
    """What stands for an observation in a journal: a text itself, for images a tuple of their BLAKE2b digests."""
    if isinstance(observation, str):
        return observation
    return tuple(
        hashlib.blake2b(image.tobytes() + repr(image.shape).encode(), digest_size=16).hexdigest()
        for image in observation
    )


def state_hash(digest: Any) -> str:
    """32 hexadecimal digits that are equal where environments show the same, of the digest of what they show."""
    shown = digest if isinstance(digest, str) else "\n".join(digest)
    return hashlib.blake2b(shown.encode("utf-8", "surrogatepass"), digest_size=16).hexdigest()


def _number(value: Any) -> float:
    try:
        return float(value)
    except (TypeError, ValueError):
        return 0.0


def _detached(info: dict[str, Any]) -> dict[str, Any]:
    """The info itself if nothing in it can change, else a copy as of now, as a pickled result would be."""
    for value in info.values():
        if type(value) not in IMMUTABLE and not is_immutable(value):
            return {key: copied(value) for key, value in info.items()}
    return info
