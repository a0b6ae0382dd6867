"""``ragen check``: honest environments pass, and each fault is found with its place, its field and both values."""

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
    *(cases.Walk, cases.Saves, cases.HasItsLevelElsewhere, cases.ResetsSlowly, cases.ResetsSlowlyAndSaves),
    *(
        cases.NamesActionsAtReset,
        cases.DrawsDeclared,
        cases.DrawsAndSaves,
        cases.Locked,
        cases.Prints,
        cases.RaisesInClose,
    ),
    *(cases.ReturnsNothing, cases.ResetsAsGymnasium, cases.ReturnsOddValues),
    *(cases.OneTurn, *ANY_TEXT),
    *("bandit", "sokoban", "countdown", "frozen_lake"),
]


@pytest.mark.parametrize("env", HONEST, ids=str)
def test_an_honest_environment_passes(env):
    report = check_parallel(env, turns=4, actions=["go"] if env in ANY_TEXT else [])
    assert report.ok and report.difference is None, report
    assert report.valid == report.turns > 0 and report.turn_s > 0 and report.reset_s > 0


FAULTS = [
    (cases.DrawsUndeclared, "observation"),
    (cases.IgnoresItsSeed, "observation"),
    (cases.SeedsOnce, "observation"),
    (cases.TellsAHash, "observation"),
    (cases.TellsTheFirstOfASet, "observation"),
    (cases.TellsTheTime, "observation"),
    (cases.TellsTheDay, "observation"),
    (cases.TellsEntropy, "observation"),
    (cases.TellsItsProcess, "observation"),
    (cases.SharesItsGenerator, "reward"),
    (cases.SharesItsLevel, "observation"),
    (cases.RemembersEpisodes, "observation"),
    (cases.KeepsItsFirstLevel, "observation"),
    (cases.SavesTooLittle, "info['steps']"),
    (cases.SavesWithoutItsLevel, "reward"),
    (cases.SavesALock, "result"),
    (cases.ReturnsALock, "info['guard']"),
    (cases.ShowsALock, "result"),
    (cases.Hangs, "result"),
    (cases.HangsWhenBuilt, "result"),
    (cases.HangsInItsSecondEpisode, "result"),
    (cases.Exits, "result"),
    (cases.Killed, "result"),
    (cases.Raises, "result"),
    (cases.RaisesInReset, "result"),
    (cases.EarnsNaN, "result"),
]


@pytest.mark.parametrize(("env", "field"), FAULTS, ids=lambda each: getattr(each, "__name__", ""))
def test_a_fault_is_found_with_its_place_its_field_and_both_values(env, field):
    report = check_parallel(env, timeout=0.5 if "Hangs" in env.__name__ else 20.0)
    found = report.difference
    assert not report.ok and found.field == field, report
    assert found.seed in SEEDS and 0 <= found.turn <= 8 and repr(found.expected) != repr(found.got)
    assert f"seed {found.seed}, turn {found.turn}" in str(report) and field in str(report)
    assert (checks.CAUSES in str(report)) == (found.failure is None)


def test_what_happens_a_second_later_is_found(monkeypatch):
    monkeypatch.setattr(checks, "PAUSE", 1.1)
    assert check_parallel(cases.TellsTheSecond).difference.field == "observation"


def test_what_cannot_be_sent_to_a_worker_is_not_played_here():
    found = check_parallel(cases.Walk, cases.WalkConfig(thing=cases.Unpicklable())).difference
    assert (found.seed, found.turn, found.field) == (1, 0, "result") and "lock" in found.got


def test_nothing_is_advised_of_what_was_not_played(capsys):
    assert main(["support.check_cases:DrawsInValidActions"]) == NOTHING_TO_FIX
    printed = capsys.readouterr().out
    assert "use_multiprocessing" not in printed and "uses_global_rng" not in printed
    report = check_parallel(cases.DrawsInValidActions, actions=["knock"])
    assert report.difference.field == "reward"


def test_an_environment_that_declares_that_it_does_not_replay_is_not_blamed_for_it():
    class Live(cases.TellsTheTime):
        replayable = False

    report = check_parallel(Live)
    assert report.ok and report.difference.field == "observation"


@pytest.mark.parametrize(
    ("env", "home"), [(cases.Walk, "main"), (cases.Slow, "workers"), (cases.ResetsSlowly, "workers")]
)
def test_the_measurements_decide_the_advice(env, home):
    report = check_parallel(env, turns=4)
    assert home in str(report).splitlines()[-1] and (home == "workers") == (max(report.turn_s, report.reset_s) >= 1e-3)


def test_a_server_is_an_environment_like_any_other(capsys):
    servers = pytest.importorskip("support.openenv_servers")

    class Unseeded(servers.Honest):
        def reset(self, seed):
            return super().reset(random.randrange(10**6))

    with servers.server() as url:
        assert main([url]) == NOTHING_TO_FIX
    with servers.server(Unseeded) as url:
        assert main([url]) == FIX_FIRST
        assert main(["openenv", f"url={url}"]) == NOTHING_TO_FIX  # it does not claim to replay
    assert capsys.readouterr().out.count("observation: expected") == 2


def test_wrong_arguments_are_refused_before_anything_is_played(capsys):
    for words in (["no_such_env"], ["support.check_cases:Walk", "colour=red"], ["support.check_cases:Walk", "turns=5"]):
        assert main(words) == REFUSED
    for error, env, options in (
        (UnknownEnvError, "no_such_env", {}),
        (ConfigError, cases.Walk, {"config": {"no_such_field": 1}}),
        (ConfigError, cases.MisspellsItsHint, {}),
        (InputError, cases.Walk, {"turns": 0}),
        (InputError, cases.Walk, {"actions": "knock"}),
    ):
        with pytest.raises(error):
            check_parallel(env, **options)
    capsys.readouterr()
