"""Forks of environments: they stand where others stood, in any home, and play on as if nobody had forked."""

from __future__ import annotations

import itertools
import random
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import pytest

from envlanes import Engine, EnvFailed, EnvSpec, Settings
from envlanes.episode.turn import Turn
from envlanes.errors import ForkError, InputError, StateError
from envlanes.kinds import ray_cluster
from support.faulty_envs import (
    Clock,
    FaultConfig,
    Faulty,
    GlobalDraws,
    RaisesLoading,
    SavesBadly,
    Unreplayable,
    Walk,
)
from support.forking import TOYS, Kind, Saves, drawn, recorded, straight
from support.leftovers import kill_workers
from support.simulated_nodes import SimulatedCluster

PATIENT = {"step_timeout": 20.0, "reset_timeout": 20.0, "startup_timeout": 20.0, "max_workers": 2}
TURN = Turn(("a",), 9)
SEED = 7

Make = Callable[..., Engine]


class SavesDraws(GlobalDraws):
    """Draws from the global generators, whose states are saved for it."""

    replayable = False

    def save(self) -> Any:
        return self.steps, self.place

    def load(self, state: Any) -> None:
        self.steps, self.place = state


class SavesBadlyForGood(SavesBadly):
    replayable = False

    def save(self) -> Any:
        return super().save()

    def load(self, state: Any) -> None:
        super().load(state)


class RaisesSaving(SavesBadly):
    def save(self) -> Any:
        raise ValueError("not me")

    def load(self, state: Any) -> None:
        raise ValueError("nor me")


class Heir(SavesBadly):
    """Keeps more than its parent saves, and does not declare snapshots itself."""

    replayable = True

    def reset(self, seed: int | None = None, mode: str | None = None) -> str:
        self.more = 0
        return super().reset(seed, mode)

    def step(self, action: str) -> tuple[str, float, bool, dict[str, Any]]:
        self.more += 1
        observation, reward, done, info = super().step(action)
        return observation, reward + self.more, done, info


class Board(Walk):
    """Has an attribute to set, and a method that changes it."""

    bonus = 0

    def step(self, action: str) -> tuple[str, float, bool, dict[str, Any]]:
        observation, reward, done, info = super().step(action)
        return observation, reward + self.bonus, done, info

    def push(self, distance: int) -> int:
        self.place += distance
        return self.place


@pytest.fixture(params=["process", "executor", "main"])
def make(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[Make]:
    """Makes engines in main and over each kind of workers, closed in the end; nodes are simulated."""
    made: list[Engine] = []
    monkeypatch.setattr(ray_cluster, "RayCluster", SimulatedCluster)
    where = {"use_lanes": False} if request.param == "main" else {"use_lanes": True, "backend": request.param}

    def make_one(specs: Iterable[EnvSpec] = (), **settings: Any) -> Engine:
        made.append(Engine(specs, Settings.of(**{**PATIENT, **where, **settings})))
        return made[-1]

    yield make_one
    for engine in made:
        engine.close()


nodes = pytest.param("ray", marks=pytest.mark.cluster)
in_main = pytest.mark.parametrize("make", ["main"], indirect=True)
in_lanes = pytest.mark.parametrize("make", ["process", "executor", nodes], indirect=True)
everywhere = pytest.mark.parametrize("make", ["process", "executor", "main", nodes], indirect=True)


def began(make: Make, env_class: Any = Walk, turns: int = 4, config: Any = None, **settings: Any) -> Engine:
    """An engine whose env 0 has played so many turns."""
    engine = make([EnvSpec.of(env_class, config, 0)], **settings)
    engine.reset({0: SEED})
    for _ in range(turns):
        engine.play({0: TURN})
    return engine


def kill(engine: Engine) -> None:
    """Kill all workers; nothing where there is none."""
    kill_workers(engine.stats())


def on(engine: Engine, env_ids: Iterable[int], turns: Iterable[Turn]) -> dict[int, list[Any]]:
    """What environments give in the turns that are played with all of them."""
    given: dict[int, list[Any]] = {env_id: [] for env_id in env_ids}
    for turn in turns:
        for env_id, result in engine.play(dict.fromkeys(given, turn)).items():
            assert not isinstance(result, EnvFailed), result.text
            given[env_id].append(recorded(result))
    return given


# What a fork is

SOME = ("saves", "draws", "walk")  # of each way to fork one


@pytest.mark.parametrize(
    ("make", "name"),
    [
        *itertools.product(("process", "main"), TOYS),
        *itertools.product(("executor",), SOME),
        *(pytest.param("ray", name, marks=pytest.mark.cluster) for name in SOME),
    ],
    indirect=["make"],
)
def test_forks_at_any_turn_play_on_as_if_nobody_had_forked(make: Make, name: str) -> None:
    kind = TOYS[name]
    turns = drawn(kind, 12, seed=3)
    expected = straight(kind, SEED, turns)
    engine = make([kind.spec(0)])
    engine.reset({0: SEED})
    new_ids = iter(range(1, 99))
    stood: dict[int, int] = {}
    for turn in turns[:10]:
        engine.play({0: turn})
        now, before = next(new_ids), next(new_ids)
        played = engine.records[0].journal.turns
        stood[now], stood[before] = played, random.Random(played).randrange(played + 1)
        shown = engine.fork(0, [now]) | engine.fork(0, [before], stood[before])
        for env_id, observation in shown.items():
            assert kind.spec(0).game.digest(observation) == expected[stood[env_id]][-1]
    for env_id, after in stood.items():
        assert on(engine, [env_id], turns[after:])[env_id] == expected[after + 1 :]
    assert on(engine, [0], turns[10:])[0] == expected[11:]


def test_a_fork_may_be_reset_and_removed_like_any_other(make: Make) -> None:
    engine = began(make)
    engine.fork(0, [1, 2])
    other = straight(TOYS["walk"], SEED + 1, [TURN])
    assert engine.reset({1: SEED + 1})[1] == other[0][-1]
    assert on(engine, [1], [TURN])[1] == other[1:]
    engine.remove([1, 2])
    assert engine.env_ids == [0]
    engine.fork(0, [1])
    after = on(engine, [0, 1], [TURN])
    assert after[0] == after[1] == straight(TOYS["walk"], SEED, [TURN] * 5)[5:]


def test_what_was_set_and_called_from_outside_is_forked_too(make: Make) -> None:
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


def test_an_episode_without_a_seed_is_forked_by_its_generators(make: Make) -> None:
    engine = make([TOYS["draws"].spec(0)])
    engine.reset({0: None})
    on(engine, [0], [TURN] * 3)
    engine.fork(0, [1])
    engine.fork(0, [2], 1)
    on(engine, [2], [TURN] * 2)
    after = on(engine, [0, 1, 2], [TURN] * 2)
    assert after[0] == after[1] == after[2]


# How, and where


@everywhere
@pytest.mark.parametrize(("env_class", "played"), [(Saves, "walk"), (SavesDraws, "draws")])
def test_what_cannot_be_replayed_is_forked_by_its_snapshots(make: Make, env_class: type[Walk], played: str) -> None:
    engine = began(make, env_class)
    engine.fork(0, [1, 2])
    engine.fork(0, [3], 2)
    after = on(engine, [0, 1, 2], [TURN] * 3)
    assert after[0] == after[1] == after[2] == straight(TOYS[played], SEED, [TURN] * 7)[5:]
    assert on(engine, [3], [TURN] * 2)[3] == straight(TOYS[played], SEED, [TURN] * 4)[3:]


@pytest.mark.parametrize(
    ("make", "env_class"),
    [*itertools.product(["process"], [SavesBadly, RaisesLoading, RaisesSaving, Heir]), ("main", RaisesLoading)],
    indirect=["make"],
)
def test_what_cannot_be_loaded_is_replayed_from_its_beginning(make: Make, env_class: type[Walk]) -> None:
    engine = began(make, env_class)
    engine.fork(0, [1])
    after = on(engine, [0, 1], [TURN] * 3)
    assert after[0] == after[1]


# Whatever happens


@in_lanes
@pytest.mark.parametrize("kind", [TOYS["walk"], TOYS["saves"]])
def test_workers_killed_before_during_and_after_change_nothing(
    make: Make, kind: Kind, caplog: pytest.LogCaptureFixture
) -> None:
    turns = drawn(kind, 6, seed=9)
    expected = straight(kind, SEED, turns)
    engine = make([kind.spec(0)])
    engine.reset({0: SEED})
    on(engine, [0], turns[:3])
    kill(engine)
    engine.fork(0, [1])
    assert "not copied" not in caplog.text, "a copy that is lost with its worker is nobody's mistake"
    kill(engine)
    engine.fork(0, [2], 2)
    kill(engine)
    assert on(engine, [2], turns[2:3])[2] == expected[3:4]
    assert on(engine, range(3), turns[3:]) == dict.fromkeys(range(3), expected[4:])


@in_lanes
def test_a_worker_that_dies_while_it_forks_is_replaced(make: Make, tmp_path: Any) -> None:
    lives, once = tmp_path / "lives", tmp_path / "once"
    fault = FaultConfig("is killed", "replay", str(once), str(lives))
    engine = began(make, Faulty, config=fault)
    engine.fork(0, [1])
    assert once.exists()
    after = on(engine, [0, 1], [TURN] * 2)
    assert after[0] == after[1]


@in_lanes
def test_a_fork_that_hangs_costs_its_time_and_is_refused(make: Make, tmp_path: Any) -> None:
    fault = FaultConfig("sleeps", "replay", "", str(tmp_path / "lives"))
    engine = began(make, Faulty, config=fault, reset_timeout=0.5, on_env_failure="truncate")
    with pytest.raises(ForkError, match="timed out"):
        engine.fork(0, [1])
    assert list(engine.records) == [0]


def test_what_has_failed_is_forked_from_a_turn_before(make: Make, tmp_path: Any) -> None:
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
def test_what_can_neither_be_loaded_nor_replayed_is_refused_and_plays_on(
    make: Make, env_class: type[Walk], turn: int | None
) -> None:
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
def test_ids_and_turns_that_cannot_be_are_refused_before_anything_is_forked(
    make: Make, given: Any, error: type[Exception]
) -> None:
    engine = began(make)
    with pytest.raises(error):
        engine.fork(*given)
    assert engine.fork(0, []) == {}
    assert list(engine.records) == [0]
    with pytest.raises(StateError):
        make([EnvSpec.of(Walk, None, 0)]).fork(0, [1])  # it was not reset


# Many


def random_forks(engine: Engine, kinds: dict[int, Kind], count: int, seed: int, kills: float) -> None:
    """Fork at random, play on at random, and hold each fork against the same actions played straight."""
    rng = random.Random(seed)
    asked: dict[int, list[Turn]] = {env_id: [] for env_id in kinds}
    kinds = dict(kinds)
    engine.reset(dict.fromkeys(kinds, SEED))
    for number in range(count):
        parent = rng.choice(list(kinds))
        now = len(asked[parent])
        turn = rng.choice([None, rng.randint(0, now)])
        new_id = max(1000, *kinds) + 1
        engine.fork(parent, [new_id], turn)
        kinds[new_id], asked[new_id] = kinds[parent], asked[parent][: now if turn is None else turn]
        if rng.random() < kills:
            kill(engine)
        moving = [*rng.sample(list(kinds), min(3, len(kinds))), new_id]
        for _ in range(rng.randint(0, 2)):
            turns = {env_id: kinds[env_id].turn(rng) for env_id in moving}
            engine.play(turns)
            for env_id, given in turns.items():
                asked[env_id] = [*asked[env_id], given]
        if number % 20 == 19 or number == count - 1:
            kinds = check_some(engine, kinds, asked, rng)


def check_some(
    engine: Engine, kinds: dict[int, Kind], asked: dict[int, list[Turn]], rng: random.Random
) -> dict[int, Kind]:
    """Compare all forks with the straight play, and let most of them go; those that remain."""
    forks = [env_id for env_id in kinds if env_id >= 1000]
    for env_id in forks:
        journal = engine.records[env_id].journal
        expected = straight(kinds[env_id], SEED, asked[env_id])
        assert [(journal.digest,), *[played.recorded for played in journal.played()]] == expected
    leaving = rng.sample(forks, max(0, len(forks) - 4))
    long = [env_id for env_id in forks if len(asked[env_id]) > 12 and env_id not in leaving]
    engine.remove([*leaving, *long])
    return {env_id: kind for env_id, kind in kinds.items() if env_id not in {*leaving, *long}}


def test_random_forks_equal_the_straight_play(make: Make) -> None:
    kinds = dict(enumerate([*TOYS.values()] * 2))
    engine = make([kind.spec(env_id) for env_id, kind in kinds.items()])
    random_forks(engine, kinds, count=40, seed=11, kills=0.05)
