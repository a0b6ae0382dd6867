"""What a turn is, and the one function that plays it.

The sequential path, the worker processes and the environment service all call :func:`play_turn`; that their rollouts
are equal is therefore a matter of construction. A turn is a function of the environment's state and the request alone,
and what it returns shares nothing with the environment, so that it reads the same in the process that played it as
after a journey through a pipe.
"""

from __future__ import annotations

import copy
import hashlib
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from ragen.errors import EnvError

Observation = Any  # str, or a list of uint8 arrays of shape (H, W, 3)

named = tuple.__new__  # named(TurnRequest, fields) makes a named tuple at half the cost of TurnRequest(*fields)


@dataclass(frozen=True, slots=True)
class EnvSpec:
    """All that is needed to build one environment, in any process.

    Attributes:
        env_id: Index of the environment within its manager.
        group_id: Group of environments that share type, configuration and seed.
        tag: Key of ``custom_envs`` it was configured under.
        env_type: Registered name or ``"package.module:Class"`` path.
        env_class: The class itself.
        config: The environment's own configuration object.
    """

    env_id: int
    group_id: int
    tag: str
    env_type: str
    env_class: type
    config: Any

    def describe(self) -> str:
        """The environment in words, for messages."""
        return f"env {self.env_id} (tag {self.tag!r}, type {self.env_type!r})"


@dataclass
class EnvStatus:
    """How an environment's episode stands.

    Attributes:
        truncated: The episode ended without success: by the action limit, by the game, or by a failure.
        terminated: The episode is over.
        num_actions: Actions executed so far.
        rewards: Reward of each turn.
        seed: Seed of the episode.
    """

    truncated: bool = False
    terminated: bool = False
    num_actions: int = 0
    rewards: list[float] = field(default_factory=list)
    seed: int | None = None


class TurnRequest(NamedTuple):
    """One turn to play: the given actions, of which at most ``actions_left`` are executed.

    Attributes:
        env_id: Whose turn it is.
        turn: Index of the turn within the episode, from 0.
        actions: What the model asked for, names or text.
        actions_left: Actions the episode still allows.
    """

    env_id: int
    turn: int
    actions: tuple[str, ...]
    actions_left: int


class TurnResult(NamedTuple):
    """What a turn gave.

    Attributes:
        env_id: Whose turn it was.
        turn: Index of the turn within the episode, from 0.
        executed: Keys (or texts) of the executed actions.
        malformed: Whether an action was unknown, or none was left to execute: the turn earns the format penalty.
        reward: Sum over the executed actions; int 0 where none was.
        done: Whether the game is over.
        info: Merged over the executed actions, the last one wins.
        observation: Text, or a list of ``(H, W, 3)`` uint8 arrays.
        digest: What a replay must give again for the observation; see :func:`digest_observation`.
    """

    env_id: int
    turn: int
    executed: list[Any]
    malformed: bool
    reward: float
    done: bool
    info: dict[str, Any]
    observation: Observation
    digest: Any


def play_turn(env: Any, request: TurnRequest) -> TurnResult:
    """Play one turn: map the action names, execute those that are allowed, sum, merge, render.

    Args:
        env: The environment, between two turns of an episode that is not over.
        request: The turn.

    Returns:
        The result, which shares no mutable object with the environment.

    Raises:
        Exception: Whatever the environment raises.
    """
    known = map_actions(env, request.actions)
    malformed = not known or len(known) != len(request.actions)
    executed: list[Any] = []
    reward: float = 0
    done = False
    info: dict[str, Any] = {}
    for action in known[: request.actions_left]:
        _, gained, done, extra = env.step(action)
        executed.append(action)
        reward += gained
        info.update(extra)
        if done:
            bool(info.get("success", False))  # what has no truth value is the environment's failure, not its reader's
            break
    observation = observe(env)
    digest = digest_observation(observation)
    env_id, turn, _, _ = request
    return named(
        TurnResult, (env_id, turn, executed, malformed, reward, bool(done), _detached(info), observation, digest)
    )


def action_lookup(env: Any) -> dict[Any, str] | None:
    """The environment's action keys with their names, if its configuration has such a table."""
    return getattr(getattr(env, "config", None), "action_lookup", None)


def map_actions(env: Any, actions: tuple[str, ...]) -> list[Any]:
    """Turn action names into the environment's action keys; unknown names are left out.

    Names are compared without regard to case. An environment whose configuration has no ``action_lookup`` gets the
    texts as they are.
    """
    lookup = action_lookup(env)
    if lookup is None:
        return list(actions)
    keys = {name.lower(): key for key, name in lookup.items()}
    return [keys[name] for name in map(str.lower, actions) if name in keys]


def observe(env: Any) -> Observation:
    """Render the environment, into text or a list of ``(H, W, 3)`` uint8 arrays of its own.

    Raises:
        EnvError: The environment rendered something else.
    """
    rendered = env.render()
    if isinstance(rendered, str):
        return rendered if type(rendered) is str else str.__str__(rendered)
    images = rendered if isinstance(rendered, list | tuple) else [rendered]
    return [_as_image(env, image) for image in images]


def _as_image(env: Any, image: Any) -> Any:
    import numpy as np  # late: a text environment's worker need not load it

    pixels = np.array(image, copy=True)
    if pixels.ndim != 3 or pixels.shape[2] != 3 or pixels.dtype != np.uint8:
        raise EnvError(
            f"{type(env).__name__}.render() gave {type(image).__name__} (shape {pixels.shape}, dtype {pixels.dtype}); "
            "expected text, or uint8 arrays of shape (H, W, 3), or a list of them."
        )
    return pixels


def digest_observation(observation: Observation) -> Any:
    """What stands for an observation in a journal: a text itself, for images a tuple of their BLAKE2b digests."""
    if isinstance(observation, str):
        return observation
    return tuple(
        hashlib.blake2b(image.tobytes() + repr(image.shape).encode(), digest_size=16).hexdigest()
        for image in observation
    )


_IMMUTABLE = frozenset({bool, int, float, complex, str, bytes, type(None)})


def _is_immutable(value: Any) -> bool:
    kind = type(value)
    if kind in _IMMUTABLE:
        return True
    return kind.__module__ == "numpy" and any(base.__name__ == "generic" for base in kind.__mro__)


def _detached(info: dict[str, Any]) -> dict[str, Any]:
    """The info itself if nothing in it can change, else a copy as of now, as a pickled result would be."""
    for value in info.values():
        if type(value) not in _IMMUTABLE and not _is_immutable(value):
            return {key: copied(value) for key, value in info.items()}
    return info


def copied(value: Any) -> Any:
    """A deep copy; the value itself where it cannot change, or cannot be copied."""
    if _is_immutable(value):
        return value
    try:
        return copy.deepcopy(value)
    except Exception:  # locks, generators, handles: such a value cannot leave its process either way
        return value
