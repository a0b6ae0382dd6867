"""``ragen check``: honest environments pass, and each fault is found with its place and its field."""

import random

import pytest

from ragen.commands import REFUSED
from ragen.errors import ConfigError, InputError, UnknownEnvError
from ragen.tools import check as checks
from ragen.tools.check import FIX_FIRST, NOTHING_TO_FIX, SEEDS, check_parallel, main
from support import check_cases as cases
from support import faulty_envs


@pytest.fixture(autouse=True)
def no_pause(monkeypatch):
    monkeypatch.setattr(checks, "PAUSE", 0.0)


ANY_TEXT = [faulty_envs.Pictures, faulty_envs.GlobalDraws]
HONEST = [
    *(cases.Walk, cases.Saves, cases.HasItsLevelElsewhere, cases.ResetsSlowly, cases.NamesActionsAtReset),
    *(cases.DrawsDeclared, cases.Locked, cases.Prints, cases.ReturnsNothing, cases.ResetsAsGymnasium),
    *(cases.ReturnsOddValues, *ANY_TEXT, "bandit", "sokoban"),
]


@pytest.mark.parametrize("env", HONEST, ids=str)
def test_an_honest_environment_passes(env):
    report = check_parallel(env, turns=4, actions=["go"] if env in ANY_TEXT else [])
    assert report.ok and report.difference is None, report
    assert report.valid == report.turns > 0


FAULTS = [
    (cases.DrawsUndeclared, "observation"),
    (cases.IgnoresItsSeed, "observation"),
    (cases.TellsAHash, "observation"),
    (cases.TellsTheTime, "observation"),
    (cases.TellsItsProcess, "observation"),
    (cases.SharesItsGenerator, "reward"),
    (cases.SharesItsLevel, "observation"),
    (cases.RemembersEpisodes, "observation"),
    (cases.SavesTooLittle, "info['steps']"),
    (cases.ReturnsALock, "info['guard']"),
    (cases.Hangs, "result"),
    (cases.HangsInItsSecondEpisode, "result"),
    (cases.Exits, "result"),
    (cases.Raises, "result"),
    (cases.RaisesInReset, "result"),
    (cases.EarnsNaN, "result"),
]


@pytest.mark.parametrize(("env", "field"), FAULTS, ids=lambda each: getattr(each, "__name__", ""))
def test_a_fault_is_found_with_its_place_and_its_field(env, field):
    report = check_parallel(env, timeout=0.5 if "Hangs" in env.__name__ else 20.0)
    found = report.difference
    assert not report.ok and found.field == field, report
    assert found.seed in SEEDS and 0 <= found.turn <= 8 and repr(found.expected) != repr(found.got)


def test_an_environment_that_declares_that_it_does_not_replay_is_not_blamed_for_it():
    class Live(cases.TellsTheTime):
        replayable = False

    report = check_parallel(Live)
    assert report.ok and report.difference.field == "observation"


def test_a_server_is_an_environment_like_any_other():
    servers = pytest.importorskip("support.openenv_servers")

    class Unseeded(servers.Honest):
        def reset(self, seed):
            return super().reset(random.randrange(10**6))

    with servers.server() as url:
        assert main([url]) == NOTHING_TO_FIX
    with servers.server(Unseeded) as url:
        assert main([url]) == FIX_FIRST
        assert main(["openenv", f"url={url}"]) == NOTHING_TO_FIX  # it does not claim to replay


def test_wrong_arguments_are_refused_before_anything_is_played():
    for words in (["no_such_env"], ["support.check_cases:Walk", "colour=red"], ["support.check_cases:Walk", "turns=5"]):
        assert main(words) == REFUSED
    for error, env, options in (
        (UnknownEnvError, "no_such_env", {}),
        (ConfigError, cases.Walk, {"config": {"no_such_field": 1}}),
        (InputError, cases.Walk, {"turns": 0}),
        (InputError, cases.Walk, {"actions": "knock"}),
    ):
        with pytest.raises(error):
            check_parallel(env, **options)
