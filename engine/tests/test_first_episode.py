"""``auto`` within an episode: environments whose turns or resets turn out to take long move to workers, and play on.

Which turns take long is said by the actions. What pays is not the question here; :mod:`test_placement` has the table.
"""

from __future__ import annotations

import os
import time
from dataclasses import replace
from pathlib import Path

import pytest

from envlanes import Engine, EnvFailed, EnvSpec, Settings, auto
from envlanes import round as rounds
from envlanes.episode import host, program
from envlanes.ragen.turn import TEXT, Turn
from support.faulty_envs import GlobalDraws, Walk

ENVS, TURNS, WORKERS = 12, 4, 2
LONG_S = 0.03

pytestmark = pytest.mark.usefixtures("soon")


@pytest.fixture
def soon(monkeypatch):
    """Long turns move after two environments, however long workers take to start; by a clock of main's own."""
    monkeypatch.setattr(rounds, "LOOK_S", 0.0)
    for module in (rounds, host):
        monkeypatch.setattr(module, "perf_counter", clock)
    for name, value in {"EACH_S": LONG_S / 2, "START_S": -1.0, "AHEAD": 1e9}.items():
        monkeypatch.setattr(auto, name, value)


class Clock:
    """A clock that a busy machine does not drive."""

    now = 0.0

    def __call__(self):
        self.now += 1e-6
        return self.now


clock = Clock()


class Paced(Walk):
    def reset(self, seed=None, mode=None):
        take_long(mode)
        return super().reset(seed, mode)

    def step(self, action):
        take_long(action)
        return super().step(action)


class PacedDraws(Paced, GlobalDraws):
    pass


class Live(Paced):
    replayable = False


def take_long(what):
    if what and what.startswith("long"):
        if program.in_worker:
            time.sleep(LONG_S)
        else:
            clock.now += LONG_S


def specs(env_class, config=None):
    return [EnvSpec.of(env_class, config, number, group_id=number // 3, tag="T", game=TEXT) for number in range(ENVS)]


def in_folder(env_class, folder):
    return [replace(each, config=(str(folder), each.env_id)) for each in specs(env_class)]


def played(engine, long, seed=5):
    """Two episodes, of which one call takes long: the values and the homes after each call."""
    values, homes = [], []
    for episode in range(2):
        seeds = {number: None if seed is None else seed + number // 3 + 100 * episode for number in range(ENVS)}
        for call in range(1 + TURNS):
            how = "long" if call == long else "brief"
            if call:
                values.append(engine.play({number: Turn((f"{how} {call}",), 1) for number in reversed(range(ENVS))}))
            else:
                values.append(engine.reset(seeds, {"mode": how}))
            homes.append([engine.home(number) for number in range(ENVS)])
    return [values, homes]


def failed(values):
    return {number for value in values for number, each in value.items() if isinstance(each, EnvFailed)}


@pytest.mark.parametrize(("long", "in_main"), [(0, [2, 2, 0]), (1, [12, 2, 0]), (TURNS, [12, 12, 12, 12, 2, 0])])
@pytest.mark.parametrize("backend", ["process", "executor"])
@pytest.mark.parametrize("env_class", [Paced, PacedDraws])
def test_what_moves_within_a_call_plays_as_it_would_have_in_main(long, in_main, backend, env_class):
    with Engine(specs(env_class), Settings(max_workers=WORKERS, backend=backend)) as engine:
        values, homes = played(engine, long)
    with Engine(specs(env_class), Settings(use_lanes=False)) as engine:
        expected, _ = played(engine, long)
    assert values == expected
    assert [list(each) for each in values] == [list(each) for each in expected]  # the order of the request
    assert [each.count("main") for each in homes[: len(in_main)]] == in_main


def test_what_cannot_be_rebuilt_is_not_moved_before_its_episode_is_over():
    with Engine(specs(Live), Settings(max_workers=WORKERS)) as engine:
        values, homes = played(engine, long=1)
    with Engine(specs(Live), Settings(use_lanes=False)) as engine:
        expected, _ = played(engine, long=1)
    assert values == expected
    assert homes[TURNS] == ["main"] * ENVS and "main" not in homes[-1]


class HeldOpen(Paced):
    """Has a file for as long as it is open, of a name of its own in each process."""

    def __init__(self, config=("", 0)):
        super().__init__()
        self.file = Path(config[0], self.name(config[1]))
        self.file.touch(exist_ok=False)

    def name(self, number):
        return f"{number} {os.getpid()}"

    def close(self):
        self.file.unlink()


class OpenOnce(HeldOpen):
    def name(self, number):
        return str(number)


class OnlyInMain(HeldOpen):
    def step(self, action):
        if program.in_worker:
            raise RuntimeError("this is another process")
        return super().step(action)


class ExitsInWorkers(HeldOpen):
    def reset(self, seed=None, mode=None):
        if program.in_worker:
            os._exit(3)
        return super().reset(seed, mode)


class NeverTheSame(HeldOpen):
    def reset(self, seed=None, mode=None):
        super().reset(seed, mode)
        return self.render()

    def step(self, action):
        return self.render(), *super().step(action)[1:]

    def render(self, mode=None):
        return os.urandom(8).hex()


@pytest.mark.parametrize("long", [1, TURNS])
@pytest.mark.parametrize("env_class", [OpenOnce, OnlyInMain, ExitsInWorkers, NeverTheSame])
def test_what_does_not_come_through_a_move_plays_on_where_it_was(env_class, long, tmp_path):
    with Engine(specs(Walk), Settings(use_lanes=False)) as engine:
        expected, _ = played(engine, long)
    with Engine(in_folder(env_class, tmp_path), Settings(max_workers=WORKERS)) as engine:
        values, homes = played(engine, long)
    assert not failed(values)
    if env_class is not NeverTheSame:
        assert values == expected
        assert homes[-1] == ["main"] * ENVS
    assert env_class is ExitsInWorkers or not list(tmp_path.iterdir())
