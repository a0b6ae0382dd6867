"""``auto`` within a call of the first episode: what is left of it goes on in a worker, and nothing else changes.

Whether that pays is not asked here, where no clock decides anything; :mod:`test_auto` has the table.
"""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from ragen.parallel import EnvEngine, EnvFailed, EnvSpec, Settings, placement
from ragen.parallel import round as rounds
from ragen.parallel.episode import program
from ragen.parallel.episode.turn import Turn
from ragen.parallel.homes import Homes
from ragen.parallel.placement import Plan
from support.faulty_envs import FaultConfig, Faulty, GlobalDraws, Walk

ENVS, TURNS = 12, 4  # before the last one nothing is looked at


class Live(Walk):
    replayable = False


@pytest.fixture
def decided(monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest) -> None:
    """A worker is up, and the look after a piece of the reset, the first or the last turn, sends a half out."""

    def first_look(state: Any, given: Any, seen: Any, left: Any = None, is_reset: bool = False) -> Any:
        begun = seen.resets if is_reset else seen.turns
        if request.param == "last turn" and len(seen.calls) < TURNS - 1:
            return state
        if left and begun and is_reset == (request.param == "reset"):
            return state.trying(Plan.even(given.members, 1))
        return replace(state, starting=1)

    monkeypatch.setattr(placement, "first_look", first_look)
    monkeypatch.setattr(placement, "break_off", lambda state, given, calls: state)  # whatever the clock says
    monkeypatch.setattr(placement, "PIECE_S", 0.0)  # one at a time
    monkeypatch.setattr(rounds, "MOMENT_S", 0.0)
    monkeypatch.setattr(Homes, "_ready", lambda homes: 1)


def specs(env_class: Any, config: Any = None) -> list[EnvSpec]:
    return [EnvSpec.of(env_class, config, number, group_id=number // 3, tag="T") for number in range(ENVS)]


def played(engine: EnvEngine, seed: int | None = 5) -> list[Any]:
    """Two episodes: what was shown, and what came of each turn; and where environments lived at their ends."""
    values, homes = [], []
    for episode in range(2):
        seeds = {number: None if seed is None else seed + number // 3 + 100 * episode for number in range(ENVS)}
        values.append(engine.reset(seeds))
        for turn in range(TURNS):
            values.append(engine.play({number: Turn((f"go {turn}",), 1) for number in reversed(range(ENVS))}))
        homes.append([engine.home(number) for number in range(ENVS)])
    return [values, homes]


@pytest.mark.parametrize("decided", ["reset", "turn", "last turn"], indirect=True)
@pytest.mark.parametrize("backend", ["process", "executor"])
@pytest.mark.parametrize("env_class", [Walk, GlobalDraws])
def test_what_moves_within_a_call_plays_as_it_would_have_in_main(decided: None, backend: str, env_class: Any) -> None:
    with EnvEngine(specs(env_class), Settings(use_lanes=False)) as engine:
        expected, _ = played(engine)
    with EnvEngine(specs(env_class), Settings(max_workers=1, backend=backend)) as engine:
        values, homes = played(engine)
    assert values == expected
    assert [list(each) for each in values] == [list(each) for each in expected]  # the order of what was asked
    assert homes[0] == ["worker 0"] * 6 + ["main"] * 6


@pytest.mark.parametrize("decided", ["turn"], indirect=True)
def test_what_cannot_be_rebuilt_is_not_moved_before_its_episode_is_over(decided: None) -> None:
    with EnvEngine(specs(Live), Settings(use_lanes=False)) as engine:
        expected, _ = played(engine)
    with EnvEngine(specs(Live), Settings(max_workers=1)) as engine:
        values, homes = played(engine)
    assert values == expected
    assert homes[0] == ["main"] * ENVS and "worker 0" in homes[1]


@pytest.mark.parametrize("decided", ["turn"], indirect=True)
def test_an_environment_that_fails_in_a_piece_fails_alone(decided: None) -> None:
    last = ENVS - 1  # which main plays first
    environments = [*specs(Walk)[:last], EnvSpec.of(Faulty, FaultConfig("raises", "turn 0"), last, tag="T")]
    with EnvEngine(environments, Settings(max_workers=1)) as engine:
        engine.reset(dict.fromkeys(range(ENVS), 1))
        values = engine.play({number: Turn(("go",), 1) for number in range(ENVS)})
    assert [number for number, value in values.items() if isinstance(value, EnvFailed)] == [last]


@pytest.mark.parametrize("decided", ["turn"], indirect=True)
def test_an_environment_that_was_added_stays_where_it_was_when_others_of_its_tag_move(decided: None) -> None:
    values, homes = [], []
    for settings in (Settings(use_lanes=False), Settings(max_workers=1)):
        with EnvEngine(specs(Walk), settings) as engine:
            engine.reset(dict.fromkeys(range(ENVS), 5))
            engine.add(EnvSpec.of(Walk, None, ENVS, group_id=0, tag="T"))
            engine.reset({ENVS: 5})
            values.append(engine.play({number: Turn(("go",), 1) for number in range(ENVS + 1)}))
            homes.append({engine.home(number) for number in range(ENVS)})
            assert engine.home(ENVS) == "main"
    assert values[0] == values[1] and "worker 0" in homes[1]


class HeldOpen(Walk):
    """Has a file for as long as it is open, of a name of its own in each process."""

    def __init__(self, config: tuple[str, int] = ("", 0)) -> None:
        super().__init__()
        self.file = Path(config[0], self.name(config[1]))
        self.file.touch(exist_ok=False)

    def name(self, number: int) -> str:
        return f"{number} {os.getpid()}"

    def close(self) -> None:
        self.file.unlink()


class OpenOnce(HeldOpen):
    def name(self, number: int) -> str:
        return str(number)


class OnlyInMain(HeldOpen):
    def step(self, action: str) -> Any:
        if program.in_worker:
            raise RuntimeError("this is another process")
        return super().step(action)


class ExitsInWorkers(HeldOpen):
    def reset(self, seed: int | None = None, **options: Any) -> str:
        if program.in_worker:
            os._exit(3)
        return super().reset(seed, **options)


class NeverTheSame(HeldOpen):
    def reset(self, seed: int | None = None, **options: Any) -> str:
        super().reset(seed, **options)
        return self.render()

    def step(self, action: str) -> Any:
        return self.render(), *super().step(action)[1:]

    def render(self, mode: str | None = None) -> str:
        return os.urandom(8).hex()


def are_open_at(homes: list[str], folder: Path) -> bool:
    """Whether each environment is open there, and nowhere else."""
    pids = {"main": os.getpid()}
    found = {int(path.name.split()[0]): int(path.name.split()[1]) for path in folder.iterdir()}
    pids["worker 0"] = next((pid for pid in found.values() if pid != os.getpid()), 0)
    expected = {number: pids[home] for number, home in enumerate(homes)}
    return found == expected and len(list(folder.iterdir())) == len(homes)


@pytest.mark.parametrize("decided", ["turn", "last turn"], indirect=True)
@pytest.mark.parametrize("env_class", [OpenOnce, OnlyInMain, ExitsInWorkers, NeverTheSame])
def test_what_does_not_come_through_a_move_plays_on_where_it_was(decided: None, env_class: Any, tmp_path: Path) -> None:
    environments = [replace(each, config=(str(tmp_path), each.env_id)) for each in specs(env_class)]
    with EnvEngine(specs(Walk), Settings(use_lanes=False)) as engine:
        expected, _ = played(engine)
    with EnvEngine(environments, Settings(max_workers=1)) as engine:
        values, homes = played(engine)
    assert not [each for value in values for each in value.values() if isinstance(each, EnvFailed)]
    if env_class is not NeverTheSame:
        assert values == expected
        assert homes == [["main"] * ENVS] * 2
    assert env_class is ExitsInWorkers or not list(tmp_path.iterdir())


@pytest.mark.parametrize("decided", ["turn"], indirect=True)
def test_what_has_moved_is_open_in_one_place(decided: None, tmp_path: Path) -> None:
    environments = [replace(each, config=(str(tmp_path), each.env_id)) for each in specs(HeldOpen)]
    with EnvEngine(environments, Settings(max_workers=1)) as engine:
        _, homes = played(engine)
        assert "worker 0" in homes[1] and are_open_at(homes[1], tmp_path)


def test_what_cannot_be_replayed_stays_in_a_worker_where_all_are_to_leave_it(tmp_path: Path) -> None:
    environments = [replace(each, config=(str(tmp_path), each.env_id)) for each in specs(NeverTheSame)]
    with EnvEngine(environments, Settings(use_lanes=True, max_workers=1)) as engine:
        engine.reset(dict.fromkeys(range(ENVS), 1))
        engine.use_lanes = False
        for _ in range(2):
            values = engine.play(dict.fromkeys(range(ENVS), Turn(("go",), 1)))
            assert not [each for each in values.values() if isinstance(each, EnvFailed)]
        assert are_open_at(["worker 0"] * ENVS, tmp_path)
