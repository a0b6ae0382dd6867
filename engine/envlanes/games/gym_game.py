"""Gymnasium's games: environments whose ``step`` returns five values; older ones are in :mod:`envlanes.games.gym_old`.

An episode may begin within a turn: gymnasium's vector environments reset a sub-environment in the step after its
episode's end, or in the step that ends it. Both happen here, in the environment's process, and the data for the new
episode's journal (the digest of its first observation, the generators' states before it) is returned with the turn.
"""

from __future__ import annotations

import operator
import pickle
from collections.abc import Mapping
from functools import lru_cache, reduce
from typing import Any, NamedTuple

from envlanes.episode.game import EpisodeStart, Game, Options
from envlanes.episode.global_rng import state_in_place
from envlanes.episode.journal import Change
from envlanes.episode.spec import EnvSpec
from envlanes.episode.turn import named
from envlanes.episode.values import copied
from envlanes.games import snapshots
from envlanes.games.shared_buffer import Place, left
from envlanes.games.values import NUMBERS, detached, detached_info, digest_of, dumped
from envlanes.returned import FIVE, REWARD, is_number, wrong, wrong_reset, wrong_step

NEVER, NOW, AT_END = range(
    3
)  # when the next episode begins: not in this turn, instead of it, or as it ends the last one

DESCRIBE, CHECK, READ, IS_WRAPPED = "envlanes:describe", "envlanes:check", "envlanes:read", "envlanes:is_wrapped"
HAS = "envlanes:has"
"""Attributes that a vector environment reads."""
NOT_TO_CALL = ("reset", "step", "close", "_setattr", "_check_spaces")


class Shown(NamedTuple):
    """An observation after a reset, or at the end of an episode.

    Attributes:
        observation: An element of the observation space.
        info: Its info.
    """

    observation: Any
    info: Any


class GymTurn(NamedTuple):
    """The request of a turn.

    Attributes:
        action: An element of the action space.
        begins: Whether and when the next episode begins: :data:`NEVER`, :data:`NOW`, :data:`AT_END`.
        seed: The seed of that episode's reset.
        options: The options of that episode's reset.
        place: Where the observation may be stored in shared memory.
    """

    action: Any
    begins: int = NEVER
    seed: int | None = None
    options: dict[str, Any] | None = None
    place: Place | None = None


class Began(NamedTuple):
    """An episode began in a turn.

    Attributes:
        before: State of the generators before; None where there was a seed.
    """

    before: Any


class GymResult(NamedTuple):
    """The result of a turn.

    Attributes:
        observation: The current observation.
        reward: The environment's reward.
        terminated: Whether the episode has terminated.
        truncated: Whether it was truncated.
        info: The environment's info.
        digest: The observation's digest for the journal.
        final: The last observation of the previous episode, if the next one began in the same turn.
        began: Whether an episode began in this turn.
    """

    observation: Any
    reward: Any
    terminated: bool
    truncated: bool
    info: Any
    digest: Any
    final: Shown | None = None
    began: Began | None = None


class Description(NamedTuple):
    """The properties of a sub-environment for its vector environment; pickled, since spaces may be of any class.

    Attributes:
        spaces: Observation space and action space.
        metadata: The environment's metadata.
        render_mode: The environment's render mode.
    """

    spaces: bytes
    metadata: bytes
    render_mode: str | None


class IsMethod(NamedTuple):
    """A placeholder for an attribute that is callable."""


class GymGame(Game):
    """Environments with ``reset(seed=, options=)`` and a ``step(action)`` that returns five values."""

    recorded = ("reward", "terminated", "truncated", "digest")
    begins_in_turns = True
    record = staticmethod(operator.itemgetter(1, 2, 3, 5))  # type: ignore[assignment]  # no method where each call counts

    def build(self, spec: EnvSpec) -> Any:
        """Build it, with a copy of its configuration if there is one."""
        return spec.env_class() if spec.config is None else spec.env_class(copied(spec.config))

    def reset(self, env: Any, seed: int | None, options: Options) -> Shown:
        """Begin an episode."""
        observation, info = self.shown(env, seed, options)
        return named(Shown, (detached(observation), detached_info(info)))

    def shown(self, env: Any, seed: int | None, options: Options) -> tuple[Any, Any]:
        """Reset it; returns the environment's observation and info."""
        returned = env.reset(seed=seed, options=copied(options))
        is_pair = isinstance(returned, tuple) and len(returned) == 2
        if not (is_pair and (type(returned[1]) is dict or isinstance(returned[1], Mapping))):
            raise wrong_reset(env, returned)
        return returned

    def play(self, env: Any, turn: GymTurn) -> GymResult:
        """Play a turn, or begin an episode instead, or at the end of the last one."""
        if turn[1] == NOW:
            began, observation, info = self._begin(env, turn[2], turn[3])
            return self._result(turn, (observation, 0.0, False, False, info), None, began)
        return self.stepped(env, turn, self.step(env, detached(turn[0])))

    def stepped(self, env: Any, turn: GymTurn, values: Any) -> GymResult:
        """The result of a turn whose step returned these five values; begins an episode if requested."""
        try:
            observation, reward, terminated, truncated, info = values
            terminated, truncated = bool(terminated), bool(truncated)
        except Exception as error:  # whatever values of a user's classes raise
            raise wrong_step(env, values, FIVE) from error
        reward = reward if type(reward) in NUMBERS else detached_reward(env, reward)
        final: Shown | None = None
        began: Began | None = None
        if turn[1] and (terminated or truncated):
            final = Shown(detached(observation), detached_info(info))
            began, observation, info = self._begin(env, turn[2], turn[3])
        return self._result(turn, (observation, reward, terminated, truncated, info), final, began)

    def _result(self, turn: GymTurn, values: Any, final: Shown | None, began: Began | None) -> GymResult:
        observation, reward, terminated, truncated, info = values
        digest, place = digest_of(observation), turn[4]
        if info:
            info = detached(info)
        observation = detached(observation) if place is None else left(observation, place)
        return named(GymResult, (observation, reward, terminated, truncated, info, digest, final, began))

    def _begin(self, env: Any, seed: int | None, options: Options) -> tuple[Began, Any, Any]:
        before: Any = None
        if seed is None:
            before = state_in_place(), self.generator_state(env)
        elif states := self.generator_state(env, is_seeded=True):
            before = None, states
        return named(Began, (before,)), *self.shown(env, seed, options)

    def step(self, env: Any, action: Any) -> Any:
        """Step it; returns observation, reward, terminated, truncated and info."""
        return env.step(action)

    def has_snapshots(self, env: Any) -> bool:
        """Whether it and all its wrappers declare snapshots or have built-in support."""
        return snapshots.can_save(env)

    def saves_midway(self, env: Any) -> bool:
        """True except for Atari."""
        return snapshots.are_midway(env)

    def save(self, env: Any) -> Any:
        """The state of each layer."""
        return snapshots.save(env)

    def load(self, env: Any, state: Any) -> None:
        """Put it back."""
        snapshots.load(env, state)

    def generator_state(self, env: Any, is_seeded: bool = False) -> Any:
        """The states of ``np_random``, spaces, and generators in attributes; None if another one decides."""
        return None if snapshots.has_native_generator(env) else super().generator_state(env, is_seeded)

    def start(self, action: GymTurn, result: GymResult) -> EpisodeStart | None:
        """The episode that began in this turn."""
        began = result.began
        if began is None:
            return None
        return named(EpisodeStart, (action.seed, action.options, result.digest, began.before))

    def digest(self, observation: Shown) -> Any:
        """The digest of the observation, without the info, which may contain clock times."""
        return digest_of(observation.observation)

    def without_place(self, action: GymTurn) -> GymTurn:
        """The turn without shared memory for its observation."""
        return action._replace(place=None)

    def apply(self, env: Any, change: Change) -> Any:
        """Call a method, set or read an attribute, through wrappers."""
        name = change.name
        if name == DESCRIBE:
            return self.describe(env)
        if name == CHECK:
            return self.check(env, *change.arguments)
        if name == IS_WRAPPED:
            return _is_wrapped(env, change.arguments[0])
        if name == HAS:
            try:
                _get(env, change.arguments[0])
            except AttributeError:
                return False
            return True
        if name == READ:
            first, *rest = change.arguments
            found = reduce(getattr, rest, _get(env, first))
            return IsMethod() if callable(found) else found
        if change.is_set:
            _set(env, name, copied(change.arguments[0]))
            return None
        if name in NOT_TO_CALL:
            raise ValueError(f"Trying to call function `{name}` with `call`, use `{name}` directly instead.")
        found = _get(env, name)
        return found(*change.arguments, **change.keywords) if callable(found) else found

    # Properties for vector environments

    def spaces(self, env: Any) -> tuple[Any, Any]:
        """Its observation space and its action space, of gymnasium's classes."""
        return env.observation_space, env.action_space

    def describe(self, env: Any) -> Description:
        """The properties of a sub-environment for its vector environment."""
        metadata, mode = getattr(env, "metadata", None) or {}, getattr(env, "render_mode", None)
        return Description(dumped(self.spaces(env)), dumped(dict(metadata)), mode)

    def check(self, env: Any, is_same: bool, spaces: bytes) -> tuple[bool, bool]:
        """Whether an environment's observation space and action space match those of others.

        Args:
            env: The environment.
            is_same: Whether observation spaces must be equal; otherwise only their shapes and types.
            spaces: The pickled spaces of the others.
        """
        from gymnasium.spaces.utils import is_space_dtype_shape_equiv

        observation, action = _loaded(spaces)
        mine, my_action = self.spaces(env)
        fits = observation == mine if is_same else is_space_dtype_shape_equiv(observation, mine)
        return bool(fits), bool(action == my_action)


GYM = GymGame()


def detached_reward(env: Any, reward: Any) -> Any:
    """A reward of an unusual type, copied so that it shares no memory with the environment.

    NaN and infinity are passed on, as gymnasium's own vector environments do.

    Raises:
        ReturnError: It is not a number.
    """
    if not is_number(reward):
        raise wrong(env, "step", reward, REWARD, "reward")
    return detached(reward)


@lru_cache(maxsize=4)
def _loaded(spaces: bytes) -> Any:
    return pickle.loads(spaces)


def _is_wrapped(env: Any, wrapper: type) -> bool:
    while env is not None:
        if isinstance(env, wrapper):
            return True
        env = vars(env).get("env")
    return False


def _get(env: Any, name: str) -> Any:
    get = getattr(env, "get_wrapper_attr", None)
    return get(name) if get is not None else getattr(env, name)


def _set(env: Any, name: str, value: Any) -> None:
    put = getattr(env, "set_wrapper_attr", None)
    if put is not None:
        put(name, value)
    else:
        setattr(env, name, value)
