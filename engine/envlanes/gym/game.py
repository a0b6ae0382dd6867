"""Gymnasium's games: environments whose ``step`` returns five values.

An episode may begin within a turn: gymnasium's vector environments reset a sub-environment in the step after its
episode's end, or in the step that ends it. Both happen here, in the environment's process, and the data for the new
episode's journal (the digest of its first observation, the generators' states before it) is returned with the turn.

A snapshot holds one state per layer: the environment and each of its wrappers. Every layer has to declare ``save`` and
``load``, but gymnasium's own wrappers, whose state is in their attributes, and Atari: ALE clones its state with its
generator, which is in C++ and can be saved in no other way.
"""

from __future__ import annotations

import operator
from collections.abc import Mapping
from functools import reduce
from typing import Any, NamedTuple

from envlanes.episode.game import EpisodeStart, Game, Options, declares_snapshots, named
from envlanes.episode.global_rng import state_in_place
from envlanes.episode.journal import Change
from envlanes.episode.pickled import Pickled
from envlanes.episode.values import copied
from envlanes.gym.digests import detached, digest_of
from envlanes.returned import FIVE, REWARD, is_number, wrong, wrong_reset, wrong_step

NEVER, NOW, AT_END = range(3)
"""When a turn begins the next episode: not at all, instead of playing, or if it ends the last one."""

OWN = "envlanes:"  # begins the name of a change that is a method of the game, not of the environment
READ = f"{OWN}read"
NOT_TO_CALL = ("reset", "step", "close", "_setattr", "_check_spaces")  # which would bypass the episode's journal
_WRAPPERS = ("gymnasium.wrappers.", "ale_py.")
_BUILT = ("env", "spec", "action_space", "observation_space", "metadata", "ale")  # attributes that building sets


class Shown(NamedTuple):
    """An observation after a reset, or at the end of an episode, and its info."""

    observation: Any
    info: Any


class GymTurn(NamedTuple):
    """The request of a turn.

    Attributes:
        action: An element of the action space.
        begins: Whether and when the next episode begins: :data:`NEVER`, :data:`NOW`, :data:`AT_END`.
        seed: The seed of that episode's reset.
        options: The options of that episode's reset.
    """

    action: Any
    begins: int = NEVER
    seed: int | None = None
    options: dict[str, Any] | None = None


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
        began: The episode that began in this turn, if one did.
    """

    observation: Any
    reward: Any
    terminated: bool
    truncated: bool
    info: Any
    digest: Any
    final: Shown | None = None
    began: EpisodeStart | None = None


class IsMethod(NamedTuple):
    """A placeholder for an attribute that is callable."""


class GymGame(Game):
    """Environments with ``reset(seed=, options=)`` and a ``step(action)`` that returns five values."""

    recorded = ("reward", "terminated", "truncated", "digest")
    record = staticmethod(operator.itemgetter(1, 2, 3, 5))  # type: ignore[assignment]  # no method where each call counts

    def reset(self, env: Any, seed: int | None, options: Options) -> Shown:
        """Begin an episode."""
        observation, info = self.shown(env, seed, options)
        return named(Shown, (detached(observation), detached(info)))

    def shown(self, env: Any, seed: int | None, options: Options) -> tuple[Any, Any]:
        """Reset it; returns the environment's observation and info."""
        returned = env.reset(seed=seed, options=copied(options))  # copies: a replay gives it the same ones again
        if not (isinstance(returned, tuple) and len(returned) == 2 and isinstance(returned[1], Mapping)):
            raise wrong_reset(env, returned)
        return returned

    def play(self, env: Any, turn: GymTurn) -> GymResult:
        """Play a turn, or begin an episode instead, or at the end of the last one."""
        action, begins, seed, options = turn
        final: Shown | None = None
        began: EpisodeStart | None = None
        if begins == NOW:
            reward, terminated, truncated = 0.0, False, False
            began, observation, info = self._begin(env, seed, options)
        else:
            returned = self.step(env, detached(action))
            try:
                observation, reward, terminated, truncated, info = returned
                terminated, truncated = bool(terminated), bool(truncated)
            except Exception as error:  # values of a user's classes may raise anything
                raise wrong_step(env, returned, FIVE) from error
            if type(reward) is not float:
                if not is_number(reward):  # NaN and infinity are passed on, as gymnasium's own vector environments do
                    raise wrong(env, "step", reward, REWARD, "reward")
                reward = detached(reward)
            if begins and (terminated or truncated):
                # Before the reset, which may overwrite the array that holds the final observation.
                final = Shown(detached(observation), detached(info))
                began, observation, info = self._begin(env, seed, options)
        digest = digest_of(observation) if began is None else began.digest
        values = detached(observation), reward, terminated, truncated, detached(info), digest, final, began
        return named(GymResult, values)

    def _begin(self, env: Any, seed: int | None, options: Options) -> tuple[EpisodeStart, Any, Any]:
        # Before the reset: a rebuilt environment is reset from these states.
        own = self.generator_state(env, is_seeded=seed is not None)
        before = (state_in_place(), own) if seed is None else (None, own) if own else None
        observation, info = self.shown(env, seed, options)
        return named(EpisodeStart, (seed, options, digest_of(observation), before)), observation, info

    def step(self, env: Any, action: Any) -> Any:
        """Step it; returns observation, reward, terminated, truncated and info."""
        return env.step(action)

    def digest(self, observation: Shown) -> Any:
        """The digest of the observation, without the info, which may contain clock times."""
        return digest_of(observation.observation)

    # Snapshots

    def has_snapshots(self, env: Any) -> bool:
        """Whether it and all its wrappers declare snapshots, or are of the two kinds that need not."""
        *wrappers, inner = map(type, _layers(env))
        plain = (declares_snapshots(kind) or kind.__module__.startswith(_WRAPPERS) for kind in wrappers)
        return (declares_snapshots(inner) or _is_atari(inner)) and all(plain)

    def saves_midway(self, env: Any) -> bool:
        """True except for Atari: ALE does not clone the last executed action, which a sticky action repeats."""
        return not _is_atari(type(_layers(env)[-1]))

    def save(self, env: Any) -> Any:
        """The state of each layer, the outermost wrapper first."""
        return list(map(_saved, _layers(env)))

    def load(self, env: Any, state: Any) -> None:
        """Restore a state from :meth:`save`."""
        for layer, saved in zip(_layers(env), state, strict=True):
            if declares_snapshots(type(layer)):
                layer.load(saved)
                continue
            attributes, native = saved
            vars(layer).update(attributes)
            if native is not None:
                layer.restore_state(native)

    def generator_state(self, env: Any, is_seeded: bool = False) -> Any:
        """The states of ``np_random``, spaces, and generators in attributes; None for Atari's, which decides alone."""
        return super().generator_state(env, is_seeded) if self.saves_midway(env) else None

    # Attributes and methods

    def apply(self, env: Any, change: Change) -> Any:
        """Call a method, set or read an attribute, through wrappers; or call a method of this game."""
        name = change.name
        if name.startswith(OWN):
            return getattr(self, name.removeprefix(OWN))(env, *change.arguments)
        if change.is_set:
            getattr(env, "set_wrapper_attr", env.__setattr__)(name, copied(change.arguments[0]))
            return None
        if name in NOT_TO_CALL:  # in gymnasium's words
            raise ValueError(f"Trying to call function `{name}` with `call`, use `{name}` directly instead.")
        arguments, keywords = copied((change.arguments, change.keywords))
        found = _attribute(env, name)
        return found(*arguments, **keywords) if callable(found) else found

    def read(self, env: Any, name: str, *path: str) -> Any:
        """An attribute, or one of it and so on along a path; an :class:`IsMethod` stands for a method."""
        found = reduce(getattr, path, _attribute(env, name))
        return IsMethod() if callable(found) else found

    def is_wrapped(self, env: Any, wrapper: type) -> bool:
        """Whether the environment, or anything it wraps, is an instance of a class."""
        return any(isinstance(layer, wrapper) for layer in _layers(env))

    def describe(self, env: Any) -> bytes:
        """Spaces, metadata and render mode for the vector environment; pickled, since they may be of any class."""
        metadata = dict(getattr(env, "metadata", None) or {})
        return Pickled.of(
            (env.observation_space, env.action_space, metadata, getattr(env, "render_mode", None))
        ).pickled


GYM = GymGame()


def _attribute(env: Any, name: str) -> Any:
    get = getattr(env, "get_wrapper_attr", None)
    return getattr(env, name) if get is None else get(name)


def _layers(env: Any) -> list[Any]:
    """The environment's wrappers, the outermost first, and the environment itself."""
    found = [env]
    # An environment without `unwrapped` is none of gymnasium's: its `env` may be anything.
    while hasattr(type(found[-1]), "unwrapped") and "env" in vars(found[-1]):
        found.append(vars(found[-1])["env"])
    return found


def _is_atari(kind: type) -> bool:
    return (kind.__module__, kind.__name__) == ("ale_py.env", "AtariEnv")


def _saved(layer: Any) -> Any:
    if declares_snapshots(type(layer)):
        return layer.save()
    attributes = {name: value for name, value in vars(layer).items() if name not in _BUILT}
    return attributes, layer.clone_state(include_rng=True) if _is_atari(type(layer)) else None
