"""What every environment promises: bodies of tests that test modules call."""

from __future__ import annotations

import json
import pickle
import random
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest

from ragen.errors import ConfigError

MakeEnv = Callable[[], Any]
SEED = 11


def play(env: Any, actions: Sequence[Any]) -> list[Any]:
    """What the actions give, in a form that compares."""
    return [json.dumps([*env.step(action), env.render()]) for action in actions]


def assert_seed_and_actions_decide_everything(make_env: MakeEnv, actions: Sequence[Any], seed: int = SEED) -> None:
    """Two environments, and one that played something else before, give the same."""
    first, second = make_env(), make_env()
    shown = first.reset(seed)
    expected = play(first, actions)
    second.reset(seed + 1)
    play(second, actions[:1])
    assert second.reset(seed) == shown
    assert play(second, actions) == expected


def assert_saves_at_any_moment(make_env: MakeEnv, actions: Sequence[Any], seed: int = SEED) -> None:
    """What loads a snapshot of any moment of an episode plays as the original from there; neither notices the other."""
    assert {"save", "load"} <= vars(type(make_env())).keys()
    expected = play(_reset(make_env(), seed), actions)
    for count in range(len(actions)):
        original, others = _reset(make_env(), seed), [make_env(), _reset(make_env(), seed + 1)]
        play(original, actions[:count])
        shown, saved = original.render(), pickle.dumps(original.save())
        for other in others:
            other.load(pickle.loads(saved))
            assert other.render() == shown if isinstance(shown, str) else (other.render() == shown).all()
            assert play(other, actions[count:]) == expected[count:]
        assert play(original, actions[count:]) == expected[count:]


def _reset(env: Any, seed: int) -> Any:
    env.reset(seed)
    return env


def assert_pickles_in_mid_episode(
    make_env: MakeEnv, actions: Sequence[Any], limit: int = 6000, seed: int = SEED
) -> None:
    """A pickled environment goes on where it was, and takes no data along."""
    env = _reset(make_env(), SEED)
    play(env, actions[:1])
    pickled = pickle.dumps(env)
    assert len(pickled) < limit
    assert play(pickle.loads(pickled), actions[1:]) == play(env, actions[1:])


def assert_leaves_the_global_generators_alone(make_env: MakeEnv, actions: Sequence[Any]) -> None:
    """Neither ``random`` nor ``numpy.random`` is drawn from or seeded."""
    random.seed(7)
    np.random.seed(7)
    before = random.getstate(), np.random.get_state()[1].tolist()
    env = _reset(make_env(), 3)
    env.reset(None)
    play(env, actions)
    assert (random.getstate(), np.random.get_state()[1].tolist()) == before
    assert env.uses_global_rng is False


def assert_refused(config_class: type, key: str, value: Any) -> str:
    """A configuration with this value is refused as it is made; the error, which names key and value."""
    with pytest.raises(ConfigError) as refusal:
        config_class(**{key: value})
    assert f"{key}={value!r}" in str(refusal.value)
    return str(refusal.value)
