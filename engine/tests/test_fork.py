"""Forks of environments: they stand where others stood, in any home, and play on as if nobody had forked."""

from __future__ import annotations

import itertools
import random
from collections.abc import Callable
from typing import Any

import pytest

from envlanes import Engine, EnvFailed, EnvSpec
from envlanes.errors import ForkError, InputError, StateError
from envlanes.ragen.turn import TEXT, Turn
from support.faulty_envs import (
    Clock,
    FaultConfig,
    Faulty,
    RaisesLoading,
    SavesBadly,
    Unreplayable,
    Walk,
)
from support.forking import TOYS, recorded, straight
from support.leftovers import kill_workers

TURN = Turn(("a",), 9)
SEED = 7

Make = Callable[..., Engine]


class SavesBadlyForGood(SavesBadly):
    replayable = False

    def save(self):
        return super().save()

    def load(self, state):
        super().load(state)


class RaisesSaving(SavesBadly):
    def save(self):
        raise ValueError("not me")

    def load(self, state):
        raise ValueError("nor me")


class Heir(SavesBadly):
    """Keeps more than its parent saves, and does not declare snapshots itself."""

    replayable = True

    def reset(self, seed=None, mode=None):
        self.more = 0
        return super().reset(seed, mode)

    def step(self, action):
        self.more += 1
        observation, reward, done, info = super().step(action)
        return observation, reward + self.more, done, info


class Board(Walk):
    """Has an attribute to set, and a method that changes it."""

    bonus = 0

    def step(self, action):
        observation, reward, done, info = super().step(action)
        return observation, reward + self.bonus, done, info

    def push(self, distance):
        self.place += distance
        return self.place


nodes = pytest.param("ray", marks=pytest.mark.cluster)
in_main = pytest.mark.parametrize("make", ["main"], indirect=True)
in_lanes = pytest.mark.parametrize("make", ["process", "executor", nodes], indirect=True)
everywhere = pytest.mark.parametrize("make", ["process", "executor", "main", nodes], indirect=True)


def began(make, env_class=Walk, turns=4, config=None, **settings):
    """An engine whose env 0 has played so many turns."""
    engine = make([EnvSpec.of(env_class, config, 0, game=TEXT)], **settings)
    engine.reset({0: SEED})
    for _ in range(turns):
        engine.play({0: TURN})
    return engine


def on(engine, env_ids, turns):
    """The results of environments in the turns that are played with all of them."""
    given: dict[int, list[Any]] = {env_id: [] for env_id in env_ids}
    for turn in turns:
        for env_id, result in engine.play(dict.fromkeys(given, turn)).items():
            assert not isinstance(result, EnvFailed), result.text
            given[env_id].append(recorded(result))
    return given


# What a fork is


def test_a_fork_may_be_reset_and_removed_like_any_other(make):
    engine = began(make)
    engine.fork(0, [1, 2])
    other = straight(TOYS["walk"], SEED + 1, [TURN])
    assert engine.reset({1: SEED + 1})[1] == other[0][-1]
    assert on(engine, [1], [TURN])[1] == other[1:]
    engine.remove([1, 2])
    assert list(engine.records) == [0]
    engine.fork(0, [1])
    after = on(engine, [0, 1], [TURN])
    assert after[0] == after[1] == straight(TOYS["walk"], SEED, [TURN] * 5)[5:]


def test_what_was_set_and_called_from_outside_is_forked_too(make):
    engine = began(make, Board, turns=0)
    engine.set_attr([0], "bonus", 100)
    engine.play({0: TURN})
    engine.call([0], "push", 50)
    engine.fork(0, [1])
    engine.fork(0, [2], 1)
    expected = on(engine, [0, 1], [TURN] * 2)
    assert expected[1] == expected[0]
    engine.call([2], "push", 50)
    assert on(engine, [2], [TURN] * 2)[2] == expected[0]


def test_an_episode_without_a_seed_is_forked_by_its_generators(make):
    engine = make([TOYS["draws"].spec(0)])
    engine.reset({0: None})
    on(engine, [0], [TURN] * 3)
    engine.fork(0, [1])
    engine.fork(0, [2], 1)
    on(engine, [2], [TURN] * 2)
    after = on(engine, [0, 1, 2], [TURN] * 2)
    assert after[0] == after[1] == after[2]


# How, and where


@pytest.mark.parametrize(
    ("make", "env_class"),
    [*itertools.product(["process"], [SavesBadly, RaisesLoading, RaisesSaving, Heir]), ("main", RaisesLoading)],
    indirect=["make"],
)
def test_what_cannot_be_loaded_is_replayed_from_its_beginning(make, env_class):
    engine = began(make, env_class)
    engine.fork(0, [1])
    after = on(engine, [0, 1], [TURN] * 3)
    assert after[0] == after[1]


# Whatever happens


@in_lanes
def test_a_worker_that_dies_while_it_forks_is_replaced(make, tmp_path):
    lives, once = tmp_path / "lives", tmp_path / "once"
    fault = FaultConfig("is killed", "replay", str(once), str(lives))
    engine = began(make, Faulty, config=fault)
    engine.fork(0, [1])
    assert once.exists()
    after = on(engine, [0, 1], [TURN] * 2)
    assert after[0] == after[1]


@in_lanes
def test_a_fork_that_hangs_costs_its_time_and_is_refused(make, tmp_path):
    fault = FaultConfig("sleeps", "replay", "", str(tmp_path / "lives"))
    engine = began(make, Faulty, config=fault, reset_timeout=0.5, on_env_failure="truncate")
    with pytest.raises(ForkError, match="timed out"):
        engine.fork(0, [1])
    assert list(engine.records) == [0]


def test_what_has_failed_is_forked_from_a_turn_before(make, tmp_path):
    once = tmp_path / "once"
    engine = began(make, Faulty, turns=2, config=FaultConfig("raises", "turn 2", str(once)), on_env_failure="truncate")
    failed = engine.play({0: TURN})[0]
    assert isinstance(failed, EnvFailed)
    with pytest.raises(ForkError, match="boom"):
        engine.fork(0, [1])
    engine.fork(0, [1], 2)
    assert on(engine, [1], [TURN] * 2)[1] == straight(TOYS["walk"], SEED, [TURN] * 4)[3:]


# What is refused


@pytest.mark.parametrize(
    ("env_class", "turn"),
    [(Clock, None), (Unreplayable, None), (Unreplayable, 2), (SavesBadlyForGood, None)],
)
def test_what_can_neither_be_loaded_nor_replayed_is_refused_and_plays_on(make, env_class, turn):
    engine = began(make, env_class)
    with pytest.raises(ForkError):
        engine.fork(0, [1], turn)
    assert list(engine.records) == [0]
    assert not isinstance(engine.play({0: TURN})[0], EnvFailed)


@in_main
@pytest.mark.parametrize(
    ("given", "error"),
    [
        *[((0, [1], turn), InputError) for turn in (5, -1, True, 1.0, "2")],
        ((9, [1]), InputError),
        ((0, ["a"]), InputError),
        ((0, [0]), StateError),
        ((0, [1, 1]), StateError),
    ],
    ids=str,
)
def test_ids_and_turns_that_cannot_be_are_refused_before_anything_is_forked(make, given, error):
    engine = began(make)
    with pytest.raises(error):
        engine.fork(*given)
    assert engine.fork(0, []) == {}
    assert list(engine.records) == [0]
    with pytest.raises(StateError):
        make([EnvSpec.of(Walk, None, 0, game=TEXT)]).fork(0, [1])  # it was not reset


# Many


def check(engine, env_ids, kinds, asked):
    """Hold environments against the same turns, played straight."""
    for env_id in env_ids:
        journal = engine.records[env_id].journal
        expected = straight(kinds[env_id], SEED, asked[env_id])
        assert [(journal.start.digest,), *[played.recorded for played in journal.entries]] == expected


@everywhere
def test_random_forks_show_and_play_what_the_straight_play_does_though_workers_are_killed(make):
    rng, kinds = random.Random(11), dict(enumerate([*TOYS.values()] * 2))
    asked: dict[int, list[Turn]] = {env_id: [] for env_id in kinds}
    engine = make([kind.spec(env_id) for env_id, kind in kinds.items()], max_restarts=99)
    engine.reset(dict.fromkeys(kinds, SEED))
    for fork in range(1000, 1040):
        parent = rng.choice([env_id for env_id in kinds if len(asked[env_id]) < 12])
        can_go_back = kinds[parent].spec(0).is_replayable
        turn = rng.choice([None, rng.randint(0, len(asked[parent]))]) if can_go_back else None
        kinds[fork], asked[fork] = kinds[parent], asked[parent][:turn]
        shown = engine.fork(parent, [fork], turn)[fork]
        assert kinds[fork].spec(0).game.digest(shown) == straight(kinds[fork], SEED, asked[fork])[-1][-1]
        if rng.random() < 0.15:
            kill_workers(engine.stats())
        for _ in range(rng.randint(0, 2)):
            turns = {env_id: kinds[env_id].turn(rng) for env_id in {*rng.sample(list(kinds), 3), fork}}
            engine.play(turns)
            for env_id, given in turns.items():
                asked[env_id] = [*asked[env_id], given]
        if len(kinds) > 20:
            leaving = rng.sample([env_id for env_id in kinds if env_id >= 1000], 8)
            check(engine, leaving, kinds, asked)
            engine.remove(leaving)
            for env_id in leaving:
                del kinds[env_id]
    check(engine, kinds, kinds, asked)
