"""``check_parallel`` and its command: what the author of an environment is told."""

import io
import re
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import get_args

import pytest
from rich.console import Console

from ragen.commands import REFUSED
from ragen.env.base import CostHint
from ragen.errors import ConfigError, InputError, UnknownEnvError
from ragen.parallel.episode.spec import HINTS
from ragen.parallel.kinds.process import supervisor
from ragen.tools import check as checks
from ragen.tools import examination, recording
from ragen.tools.check import FIX_FIRST, NOTHING_TO_FIX, check_parallel
from ragen.tools.check_report import EnvCosts, Finding, advise
from support import check_cases

ROOT = Path(__file__).resolve().parents[2]
HASH_SEEDS, PAUSE_S = examination.HASH_SEEDS, examination.PAUSE_S


@pytest.fixture(autouse=True)
def few_hash_seeds(monkeypatch):
    monkeypatch.setattr(examination, "HASH_SEEDS", HASH_SEEDS[:1])
    monkeypatch.setattr(examination, "PAUSE_S", 0.0)


def check(env, config=None, **options):
    return check_parallel(env, config, **{"timeout": 10.0, "budget": 3.0, "seeds": 1, "turns": 4, **options})


def test_a_flawless_environment_passes_everything():
    report = check(check_cases.Saves)
    assert report.ok
    assert {finding.status for finding in report.findings.values()} == {"ok"}, report.findings
    assert "where output goes" in report.findings["leaves its process alone"].text
    assert "steps, success" in report.findings["metrics"].text and "note" in report.findings["metrics"].text
    costs = report.costs
    assert costs.turn > 0 and costs.reset > 0 and costs.build > 0


@pytest.mark.cold  # starts in this folder
@pytest.mark.parametrize(
    ("env", "told"),
    [
        (
            check_cases.LeavesAFileForEachSeed,
            r"51 new entries in the working directory \(log-1.txt, log-10.txt, log-11.txt \.\.\.\)",
        ),
        (check_cases.AppendsToAFile, r"growing files in the working directory \(log.txt\)"),
        (check_cases.KeepsACache, ""),
    ],
)
def test_what_is_written_to_the_working_directory_is_compared_with_how_it_was_before_anything_was_played(
    env, told, tmp_path, monkeypatch
):
    monkeypatch.chdir(tmp_path)
    finding = check(env).findings["leaves nothing behind"]
    assert finding.status == ("fail" if told else "ok")
    assert re.search(told, finding.text), finding.text


@pytest.mark.parametrize(
    ("env", "where", "told"),
    [
        (check_cases.TellsTheTime, "replays in its process", "the observation was 'at . of 30 at .*' and is now"),
        (check_cases.TellsEntropy, "replays in its process", "the observation was"),
        (
            check_cases.TellsEntropyAtLength,
            "replays in its process",
            r"was '\.\.\..* (\w{8}) .* is now .* of 30 (?!\1)",
        ),
        (check_cases.DrawsUndeclared, "global random numbers", "random in step.*declares uses_global_rng = False"),
        (check_cases.RemembersEpisodes, "replays after other episodes", "'at . of 30, episode 1' and is now"),
        (check_cases.TellsItsAddress, "replays in its process", "it does not always give the same: "),
        (check_cases.TellsAHash, "replays elsewhere", r"it depends on hash\(\)"),
        (check_cases.TellsTheFirstOfASet, "replays elsewhere", r"it depends on hash\(\).*red' and is now 'at .*blue'"),
        (check_cases.TellsTheDay, "replays elsewhere", "it depends on the time of day"),
        (check_cases.TellsADescriptor, "replays elsewhere", "it depends on the number of a file descriptor"),
        (check_cases.TellsItsProcess, "replays elsewhere", "another process gives a different result"),
        (check_cases.SavesTooLittle, "snapshots", "is not faithful: of a snapshot after turn 1 .*the info was"),
        (check_cases.SavesWithoutItsLevel, "snapshots", "is not faithful: .*the reward was"),
        pytest.param(
            *(
                check_cases.LeavesThings,
                "leaves nothing behind",
                "5 more threads and 5 more child processes and 5 more open files",
            ),
            marks=pytest.mark.cold,  # what was left ends with the supervisor
        ),
        pytest.param(
            *(
                check_cases.LeavesFiles,
                "leaves nothing behind",
                # one that is about to start another is seen as two, or as none
                "child processes and 5 more temporary files and 5 more temporary folders and 5 more unreleased leases",
            ),
            marks=pytest.mark.cold,
        ),
        (check_cases.Grows, "memory stays", "resets adds about"),
        (check_cases.Raises, "plays", "raises in turn 2 .*ValueError: the rope is too short"),
        (check_cases.RaisesInReset, "plays", "raises in the reset with seed 1: KeyError"),
        (check_cases.RaisesInClose, "is built and closed", "raises while it was closed: OSError: the door is stuck"),
        (check_cases.Exits, "plays", "ends its process in turn 2 .* exited with code 7"),
    ],
)
def test_a_fault_is_named_alone_and_has_to_be_fixed_first(env, where, told):
    report = check(env)
    assert report.advice == "fix" and not report.ok
    assert report.line.startswith(f"fix this first: {where}: ")
    finding = report.findings[where]
    assert report.reason.startswith(f"{where}: {finding.text}") and finding.fix in report.reason
    failed = {check for check, found in report.findings.items() if found.status == "fail"}
    assert where in failed and failed <= {where, "replays in its process"}
    assert re.search(told, finding.text), finding.text


@pytest.mark.parametrize(
    ("env", "told"),
    [
        (check_cases.ReturnsWhatItDoesNotShow, r"step\(\) returned 'you hear a voice: \d+', which render\(\) does not"),
        (check_cases.ResetsAsGymnasium, r"reset\(\) returned \('at \d+ of 30', \{\}\), which render\(\) does not"),
    ],
)
def test_what_a_model_does_not_get_to_see_is_told(env, told):
    report = check(env)
    finding = report.findings["shows what it returns"]
    assert finding.status == "warn" and report.ok
    assert re.search(told, finding.text), finding.text
    assert "render()" in finding.fix


@pytest.mark.parametrize(
    ("env", "check_name", "told"),
    [
        (check_cases.Raises, "plays", "raises in turn .*: ValueError: the rope is too short (PLACE)"),
        (check_cases.RaisesInReset, "plays", "raises .*: KeyError: 'no such level' (PLACE)"),
        (check_cases.RaisesInClose, "is built and closed", "OSError: the door is stuck (PLACE)"),
    ],
)
def test_an_exception_is_told_with_the_line_of_the_environment_that_raised_it(env, check_name, told):
    raising = r"tests/support/check_cases\.py, line \d+"
    finding = check(env).findings[check_name]
    assert re.search(told.replace("(PLACE)", rf"\({raising}\)"), finding.text), finding.text


@pytest.mark.parametrize(
    ("env", "seeds", "told"),
    [
        (check_cases.SharesItsGenerator, 1, "the reward was"),
        (check_cases.SharesItsGenerator, 3, "the reward was"),
        (check_cases.SharesItsList, 1, "the observation was"),
        (check_cases.SharesItsList, 3, "the observation was"),
        (check_cases.SharesItsLevel, 2, "in level 2' and is now 'at -?. of 30 in level 1'"),
    ],
)
def test_objects_that_share_state_are_found_out_by_playing_two_at_once(env, seeds, told):
    report = check(env, seeds=seeds)
    failed = {check: found for check, found in report.findings.items() if found.status == "fail"}
    assert failed.keys() == {"replays in its process"}
    finding = failed["replays in its process"]
    assert re.match(f"two objects that take turns share state: with seed ., at .*{told}", finding.text), finding.text
    assert "self" in finding.fix and "class attribute" in finding.fix


@pytest.mark.parametrize(
    "env",
    [check_cases.KeepsItsFirstLevel, check_cases.ForgetsToClearItsLog, check_cases.ForgetsToClearItsLogAndSaves],
)
def test_what_a_reset_forgets_is_named_although_the_longest_episode_is_not_the_first(env):
    report = check(env, seeds=3)
    failed = {check: found for check, found in report.findings.items() if found.status == "fail"}
    assert failed.keys() == {"replays after other episodes"} and "reset() must set everything" in report.reason


@pytest.mark.parametrize("env", [check_cases.DrawsDeclared, check_cases.RemembersEpisodes])
def test_other_faults_and_draws_that_are_declared_are_not_taken_for_shared_state(env):
    assert check(env, seeds=3).findings["replays in its process"].status == "ok"


@pytest.mark.parametrize(("budget", "told"), [(60.0, "under 9 hash seeds"), (1e-6, "under 3 hash seeds")])
def test_the_hash_seeds_that_were_compared_are_told_and_their_number_is_bounded_in_time(budget, told, monkeypatch):
    monkeypatch.setattr(examination, "HASH_SEEDS", HASH_SEEDS)
    assert told in check(check_cases.Walk, budget=budget, turns=1).findings["replays elsewhere"].text


def test_a_clock_that_moves_on_only_in_a_slow_episode_is_found_by_a_pause(tmp_path, monkeypatch):
    clock = tmp_path / "clock"

    def sleep(seconds):
        clock.write_text(f"{seconds:.1f}")

    monkeypatch.setattr(examination, "PAUSE_S", PAUSE_S)
    monkeypatch.setattr(recording, "time", SimpleNamespace(monotonic=time.monotonic, sleep=sleep))
    report = check(check_cases.TellsASlowClock, {"flag": str(clock)})
    finding = report.findings["replays in its process"]
    assert finding.status == "fail" and "after a pause, with seed 1, at turn 1 the observation was" in finding.text
    assert "after 0.0 s' and is now" in finding.text and "after 1.1 s'" in finding.text


def test_a_clock_that_ticks_between_two_processes_is_not_taken_for_a_process_id(tmp_path):
    finding = check(check_cases.TellsTheSecond, {"flag": str(tmp_path)}).findings["replays elsewhere"]
    assert finding.status == "fail" and "at 08:12:1' and is now" in finding.text
    assert "unseeded generators, the time" in finding.fix and "depends on its process" not in finding.fix


def test_a_process_id_that_happens_to_be_even_again_is_not_taken_for_a_hash(tmp_path):
    finding = check(check_cases.TellsTheParityOfItsProcess, {"flag": str(tmp_path)}).findings["replays elsewhere"]
    assert finding.status == "fail" and "even: True' and is now 'at" in finding.text
    assert finding.text.startswith("another process gives a different result: ") and "process id" in finding.fix


@pytest.mark.parametrize("when", [2, *range(4, 10)])  # played first, by two in turns, after a pause, again, elsewhere
def test_no_cause_is_named_for_what_happens_once_by_chance(tmp_path, when):
    report = check(check_cases.DiffersOnce, {"flag": str(tmp_path / "resets"), "fails_at": when})
    (failed,) = (found for found in report.findings.values() if found.status == "fail")
    assert failed.text.startswith("it does not always give the same: "), failed.text


def test_a_snapshot_that_differs_once_by_chance_is_not_called_unfaithful(tmp_path):
    report = check(check_cases.LoadsWronglyOnce, {"flag": str(tmp_path / "loads")})
    assert report.findings["snapshots"].text.startswith("it does not always give the same: "), report.findings


def test_an_environment_that_returns_nothing_hides_nothing():
    assert check(check_cases.ReturnsNothing).findings["shows what it returns"].status == "ok"


@pytest.mark.parametrize("env", [check_cases.Hangs, check_cases.HangsWhenBuilt])
def test_an_environment_that_hangs_is_found_out_within_its_deadline_and_its_stacks_are_kept(env):
    report = check(env, timeout=0.3)
    assert report.advice == "fix" and "hangs" in report.line
    assert "check_cases.py" in report.stories()


def test_a_hang_that_comes_late_is_told_and_the_rest_is_still_looked_at():
    report = check(check_cases.HangsInItsSecondEpisode, timeout=0.3, budget=0.1)
    assert "hangs in turn" in report.findings["replays after other episodes"].text
    assert report.findings["leaves nothing behind"].status in ("ok", "fail")


def test_a_configuration_that_cannot_be_pickled_keeps_the_environment_in_main():
    report = check(check_cases.Walk, check_cases.WalkConfig(thing=check_cases.Unpicklable()))
    assert report.advice == "sequential"
    assert report.line == 'sequential_env_types: ["support.check_cases:Walk"]'
    assert "cannot be pickled" in report.reason and "lock" in report.reason


@pytest.mark.parametrize(
    ("env", "key", "why"),
    [
        (check_cases.ReturnsAGenerator, "rest", "cannot pickle 'generator' object"),
        (check_cases.ReturnsALock, "guard", "cannot pickle '_thread.lock' object"),
        (check_cases.ReturnsAHandle, "handle", "Handle object> stays here"),
    ],
)
def test_results_that_cannot_be_pickled_keep_the_environment_in_main_and_everything_else_is_checked(env, key, why):
    report = check(env)
    assert report.advice == "sequential" and report.ok
    finding = report.findings["plays"]
    assert finding.status == "main" and f"info['{key}'], which step returns in turn 1 " in finding.text
    assert why in finding.text and " at 0x" not in finding.text and finding.text in report.reason
    assert list(report.findings) == list(check(check_cases.Walk).findings)
    assert {found.status for check, found in report.findings.items() if check != "plays"} == {"ok"}, report.findings
    assert report.costs.turn > 0
    console = Console(file=io.StringIO(), width=200)
    console.print(report)
    assert "FAIL" not in console.file.getvalue() and '"verdict": "warn"' in report.as_json()


def test_an_environment_that_must_stay_in_main_is_not_excused_from_what_must_be_fixed():
    report = check(check_cases.ReturnsALockAndTellsTheTime)
    assert report.advice == "fix" and report.line.startswith("fix this first: replays in its process: ")
    assert report.findings["plays"].status == "main"


@pytest.mark.parametrize(
    ("env", "where", "told"),
    [
        (check_cases.RaisesInARareEpisode, "plays other seeds", r"raises in turn 1 \(.*\) of seed 9: RuntimeError"),
        (check_cases.HangsInARareEpisode, "plays other seeds", r"hangs in turn 1 \(.*\) of seed 9"),
        (check_cases.NotFiniteInARareEpisode, "plays other seeds", r"turn 1 .* of seed 9: ReturnError"),
    ],
)
def test_what_is_rare_is_found_in_seeds_that_are_played_besides_those_compared(env, where, told):
    report = check(env, seeds=3, timeout=1.0)
    failed = {name: found for name, found in report.findings.items() if found.status == "fail"}
    assert list(failed) == [where] and re.search(told, failed[where].text), failed


def test_seeds_besides_those_compared_are_played_within_the_budget_and_a_slow_turn_of_theirs_is_named():
    slow = check(check_cases.SlowInARareEpisode, seeds=3)
    assert re.search(r"turn 1 \(.*\) of seed 9 took \d+ ms, a usual one", slow.findings["plays other seeds"].text)
    assert slow.findings["plays other seeds"].status == "note" and "Look at one turn" not in slow.reason
    short = check(check_cases.ResetsSlowly, budget=1e-3).findings["plays other seeds"]
    assert short.status == "ok" and short.text.startswith("1 more episode, 1 turn, played once"), short


@pytest.mark.parametrize("env", [check_cases.EarnsNaN, check_cases.EarnsInfinity])
def test_a_reward_that_is_not_finite_must_be_fixed(env):
    failed = {name: found for name, found in check(env).findings.items() if found.status == "fail"}
    assert failed and any("ReturnError" in found.text for found in failed.values())


def test_the_rewards_of_a_turn_are_told_with_how_many_actions_it_has():
    assert check(check_cases.Walk, seeds=3).findings["rewards"].text == "finite: 0 to 0 a turn of up to 2 actions"


def test_the_longest_observation_is_told_and_one_that_no_context_takes_is_a_warning():
    long = check(check_cases.TalksALot, turns=2).findings["observations"]
    assert long.status == "warn" and re.search(r"3,000,0\d\d characters in turn 1 of seed 2", long.text)
    short = check(check_cases.Walk).findings["observations"]
    assert short.status == "ok" and re.search(r"^the longest has \d\d? characters", short.text)


@pytest.mark.parametrize(
    ("env", "status", "told"),
    [
        (check_cases.SavesOnly, "warn", "the class declares save, but no load"),
        (check_cases.SavesAndInheritsLoad, "warn", "the class declares save, but inherits load from Saves"),
        (check_cases.InheritsSnapshots, "note", "Saves declares save and load, which holds for that class alone"),
    ],
)
def test_the_half_of_a_snapshot_that_is_missing_is_named(env, status, told):
    report = check(env)
    finding = report.findings["snapshots"]
    assert report.ok and finding.status == status and told in finding.text, finding
    assert f"Declare save and load in {env.__name__}" in finding.fix


@pytest.mark.parametrize("env", [check_cases.SavesALock, check_cases.ResetsSlowlyAndSavesALock])
def test_a_snapshot_that_cannot_be_pickled_is_told_once_with_what_save_may_return(env):
    report = check(env)
    failed = {check for check, found in report.findings.items() if found.status == "fail"}
    assert failed == {"snapshots"}
    finding = report.findings["snapshots"]
    assert "cannot pickle '_thread.lock' object" in finding.text and "faithful" not in finding.text
    assert "can be pickled" in finding.fix
    assert "cloudpickle" not in finding.text
    assert "PicklingError: save()[1]['door'].lock cannot be pickled: " in finding.text, finding.text


def test_an_episode_of_one_turn_compares_no_snapshot_and_that_is_said():
    finding = check(check_cases.Saves, turns=1).findings["snapshots"]
    assert finding.status == "note" and "no snapshot was compared" in finding.text


def test_snapshots_are_compared_in_the_longest_episode():
    finding = check(check_cases.SavesTooLittleOfLongEpisodes, seeds=3).findings["snapshots"]
    assert finding.status == "fail" and "of a snapshot after turn 1 of seed 2" in finding.text


def test_a_module_that_cannot_be_imported_in_a_worker_keeps_the_environment_in_main(tmp_path, monkeypatch):
    (tmp_path / "shy.py").write_text(
        "from ragen.parallel.episode import program\nfrom support.check_cases import Walk\n"
        "if program.in_worker:\n    raise ImportError('not in a worker')\n"
        "class Shy(Walk):\n    pass\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    report = check("shy:Shy")
    assert report.advice == "sequential" and "ImportError: not in a worker" in report.reason


@pytest.mark.cold
def test_a_worker_that_does_not_start_is_told_in_one_sentence(monkeypatch):
    monkeypatch.setattr(supervisor, "command_line", lambda module, arguments: ["/bin/sh", "-c", "exit 7"])
    finding = check(check_cases.Walk).findings["loads in a worker"]
    why = "its process could not be started (the supervisor process exited with code 7)"
    assert finding.text == f"its worker did not start: {why} (while it was loaded)"
    assert "hides that module" in finding.fix


def test_an_environment_that_waits_gains_from_more_workers_than_cores():
    report = check(check_cases.Slow, budget=0.05)
    assert report.advice == "parallel" and report.line == "use_multiprocessing: auto"
    assert "max_workers" in report.reason and report.costs.turn >= 0.01 and report.costs.busy < 0.3


@pytest.mark.parametrize(
    ("env", "status", "told"),
    [
        (check_cases.DrawsDeclared, "ok", "numpy.random and random in step"),
        (check_cases.DeclaresForNothing, "note", "left as they are"),
    ],
)
def test_global_random_numbers_are_fine_where_they_are_not_denied(env, status, told):
    report = check(env, turns=2)
    finding = report.findings["global random numbers"]
    assert report.ok and finding.status == status and told in finding.text


def test_state_that_an_environment_holds_elsewhere_is_fine():
    report = check(check_cases.HasItsLevelElsewhere, seeds=2)
    assert report.ok and {finding.status for finding in report.findings.values()} == {"ok"}, report.findings


@pytest.mark.parametrize(
    ("env", "status", "told"),
    [
        (check_cases.Saves, "ok", "a snapshot after each of the first 3 turns of seed 1 continues as the episode did"),
        (check_cases.Walk, "ok", "no snapshots: lost environments are replayed"),
        (check_cases.ResetsSlowly, "note", "no snapshots: .*every member of a group is reset, in .*s"),
    ],
)
def test_what_becomes_of_the_members_of_a_group_is_told_and_copying_recommended_where_resets_are_dear(
    env, status, told, monkeypatch
):
    monkeypatch.setattr(
        examination, "DEAR_RESET", 2e-3 if env is check_cases.ResetsSlowly else 1e3
    )  # however busy it is
    report = check(env)
    finding = report.findings["snapshots"]
    assert report.ok and finding.status == status and re.search(told, finding.text), finding
    assert ("Declare save and load" in finding.fix) == (env is check_cases.ResetsSlowly)


def test_what_an_environment_changes_in_its_process_is_told():
    finding = check(check_cases.ChangesItsProcess).findings["leaves its process alone"]
    assert finding.status == "warn"
    assert "the working directory" in finding.text
    for what in ("sys.path", "sys.argv", "os.environ", "sys.stdout or sys.stderr", "what descriptors 0 to 2 are"):
        assert what in finding.text


def test_an_environment_that_declares_that_it_does_not_replay_is_not_blamed_for_it():
    class Live(check_cases.TellsTheTime):
        replayable = False

    report = check(Live)
    assert report.ok and report.findings["replays in its process"].status == "note"


@pytest.mark.parametrize(
    ("turn", "reset", "advice", "line", "told"),
    [
        (4e-6, 1e-5, "sequential", 'sequential_env_types: ["support.check_cases:Walk"]', "Workers do not pay: a turn"),
        (4e-6, 1e-3, "parallel", "use_multiprocessing: auto", "whether workers pay depends"),
        (3e-4, 1e-3, "parallel", "use_multiprocessing: auto", "whether workers pay depends"),
        (9e-4, 1e-5, "parallel", "use_multiprocessing: auto", "whether workers pay depends"),
        (
            5e-3,
            1e-3,
            "parallel",
            "use_multiprocessing: auto",
            "Workers pay: a turn takes about 5.1 ms, including its share of a reset every 8 turns",
        ),
    ],
)
def test_the_line_for_the_configuration_follows_from_what_a_turn_costs(turn, reset, advice, line, told):
    costs = EnvCosts(turn=turn, reset=reset, busy=1.0, turns=8)
    report = advise("support.check_cases:Walk", {}, costs)
    assert (report.advice, report.line) == (advice, line) and told in report.reason


def test_what_generic_texts_cost_keeps_nothing_in_the_main_process():
    report = advise("support.check_cases:Walk", {}, EnvCosts(turn=4e-6, reset=1e-5), is_exercised=False)
    assert report.line == "use_multiprocessing: auto"
    assert report.reason.startswith("A turn takes about") and "define example_action" in report.reason


def test_a_turn_that_takes_far_longer_than_others_is_named_with_its_actions():
    report = check(check_cases.SlowOnce, turns=6)
    finding = report.findings["plays"]
    assert report.reason.startswith("Look at one turn first") and "cost_hint" not in report.reason
    assert finding.status == "note"
    assert re.search(r"turn \d \('\w+'.*\) of seed 1 took \d+ ms, a usual one", finding.text), finding.text


def test_a_misspelled_cost_hint_is_refused():
    assert get_args(CostHint) == HINTS
    with pytest.raises(ConfigError, match=r"cost_hint = 'oi' in .*: expected one of .* Did you mean 'io'\?"):
        check(check_cases.MisspellsItsHint)


def test_the_cost_of_a_turn_is_that_of_many_seeds():
    report = check(check_cases.SlowNowAndThen)
    assert report.costs.turn > 1e-3 and report.costs.busy < 0.5 and "it waits for" in report.reason
    assert check(check_cases.SlowWithSeedTwo, seeds=3).costs.turn > 3e-4


def test_members_of_a_group_that_load_the_first_ones_reset_do_not_count_as_reset():
    costs = EnvCosts(turn=1e-5, reset=1.6, load=1e-4, turns=8)
    report = advise("support.check_cases:Walk", {}, costs)
    assert report.line == "use_multiprocessing: auto"
    told = (
        "a turn takes about 200 ms, including its share of a reset every 8 turns, and 23 us in the members of a group"
    )
    assert told in report.reason.lower() and "how large their groups are" in report.reason
    console = Console(file=io.StringIO(), width=120)
    console.print(report)
    assert "reset, loaded" in console.file.getvalue() and "100 us" in console.file.getvalue()
    assert check(check_cases.ResetsSlowlyAndSaves).costs.load > 0


def test_names_that_a_reset_gives_to_actions_are_played():
    report = check(check_cases.NamesActionsAtReset, seeds=2)
    assert report.ok and "back 1, forth 1, back 2, forth 2" in report.findings["plays"].text
    assert "steps" in report.findings["metrics"].text


def test_texts_are_played_where_there_are_no_action_names():
    report = check(check_cases.Echo, actions=["a very long text indeed"])
    assert report.ok and report.findings["plays"].text.endswith("its actions are texts: those given")
    assert "no 'success' seen" in report.findings["metrics"].text
    generic = check(check_cases.Echo).findings["plays"]
    assert generic.status == "note" and generic.text.endswith("generic ones, none of which was said to be valid")
    assert generic.fix.startswith("Define example_action")


def test_actions_that_an_environment_chooses_itself_are_played():
    played = check(check_cases.Locked, seeds=2)
    assert played.findings["plays"].text == "2 episodes, 8 turns; its actions are chosen by its example_action"
    assert {finding.status for finding in played.findings.values()} == {"ok"}, played.findings


@pytest.mark.parametrize(
    ("example", "told"), [(("go", "north"), r"2 values, \('go', 'north'\)"), (0, r"0 \(int\)"), (None, "None")]
)
def test_an_example_action_that_is_no_text_is_refused(example, told):
    report = check(check_cases.Exemplary, check_cases.WalkConfig(thing=example))
    assert report.line.startswith("fix this first: plays: ")
    assert re.search(f"Exemplary.example_action\\(\\) returned {told}; expected text", report.line), report.line


def test_an_episode_that_the_budget_ends_is_told_with_one_that_is_enough():
    finding = check(check_cases.ResetsSlowly, seeds=3, budget=1e-3).findings["plays"]
    assert finding.status == "note" and finding.text.startswith("1 episode, 1 turn;")
    told = "The budget of 0.001 s ended this early: at this pace, --budget 1 plays all of it."
    assert finding.fix == f"{told} Other checks take as long each."


def test_actions_that_are_given_take_the_place_of_the_environments_own():
    text = check(check_cases.Locked, actions=["knock"]).findings["plays"].text
    assert "raises in turn 1 ('knock'" in text and "ValueError: wrong word" in text


def test_a_mapping_of_fields_becomes_the_configuration():
    assert "raises in turn 1" in check(check_cases.Raises, {"fails_at": 1}).line
    with pytest.raises(ConfigError, match="no_such_field"):
        check(check_cases.Raises, {"no_such_field": 1})


def test_an_unknown_environment_is_a_clear_error():
    with pytest.raises(UnknownEnvError, match="Known: "):
        check("no_such_env")


def test_a_turn_costs_the_mean_of_turns_that_differ():
    assert check(check_cases.SometimesSlow).costs.turn > 0.03 / 8


def test_the_tables_show_findings_costs_and_the_line():
    findings = {"plays": Finding("fail", "raises [red]here[/red]", "fix [it]", "Traceback")}
    report = advise("t:T", findings, EnvCosts(turn=0.0123, busy=0.5))
    console = Console(file=io.StringIO(), width=120)
    console.print(report)
    shown = console.file.getvalue()
    for text in ("FAIL", "12 ms", "50%"):
        assert text in shown
    assert shown.endswith("fix this first: plays: raises [red]here[/red]\n  fix [it]\n")
    assert shown.count("raises") == shown.count("fix [it]") == 1
    console.print(replace(report, findings={}, advice="parallel", line="use_multiprocessing: auto", reason="It pays."))
    assert console.file.getvalue().endswith(
        "It pays. In the configuration:\nes_manager:\n  use_multiprocessing: auto\n"
    )
    assert report.stories() == "plays: raises [red]here[/red]\nTraceback"


def test_a_cause_that_several_checks_find_is_told_once(monkeypatch, capsys):
    monkeypatch.setenv("COLUMNS", "160")
    assert checks.main(["support.check_cases:RaisesInLaterResets", "--seeds", "1", "--stacks"]) == FIX_FIRST
    shown = capsys.readouterr().out
    assert shown.count("Traceback (most recent call last)") == 1
    table, told = shown.split("fix this first: ")
    assert "RuntimeError: no board" not in table
    assert len(re.findall("FAIL *│ the same failure as in 'replays after other episodes'", table)) == 3
    advice = told.split("Traceback")[0]
    assert re.match(r"replays after other episodes: .*: RuntimeError: no board \d+ \(.*line \d+\)\n", advice)
    assert "leaves nothing behind, memory stays: the same failure as in 'replays after other episodes'\n" in advice
    assert len(re.findall(r"RuntimeError: no board", advice)) == 2  # what to fix first, and above the traceback


def test_costs_that_were_not_measured_are_not_told():
    report = check(check_cases.RaisesInLaterResets, budget=0.1)
    assert report.findings["snapshots"].status == "skip"


def test_the_command_prints_the_tables_and_its_exit_code_tells_whether_there_is_something_to_fix(capsys):
    arguments = ["--seeds", "1", "--turns", "3", "support.check_cases:Raises"]
    assert checks.main([*arguments, "fails_at=2"]) == FIX_FIRST
    shown = capsys.readouterr().out
    assert "the rope is too short" in " ".join(shown.split())
    assert [line for line in shown.splitlines() if line != line.rstrip()] == []
    assert checks.main([*arguments, "fails_at=99"]) == NOTHING_TO_FIX
    assert re.search("sequential_env_types|use_multiprocessing", capsys.readouterr().out)


def test_what_the_environment_prints_does_not_get_into_the_tables(capfd):
    assert checks.main(["--seeds", "1", "--turns", "3", "support.check_cases:Prints"]) == NOTHING_TO_FIX
    shown = capfd.readouterr()
    assert "leaves nothing behind" in shown.out and "a word" not in shown.out and not shown.err


def test_wrong_arguments_are_told_in_a_sentence(capsys):
    assert checks.main(["no_such_env"]) == REFUSED
    assert checks.main(["support.check_cases:Walk", "colour=red"]) == REFUSED
    assert "unknown key 'colour'" in capsys.readouterr().err
    assert checks.main(["support.check_cases:Walk", "seeds=5"]) == REFUSED
    assert "Did you mean '--seeds 5'?" in capsys.readouterr().err
    with pytest.raises(SystemExit):
        checks.main(["support.check_cases:Walk", "--seeds", "0"])
    assert "argument --seeds: 0: expected a number of at least 1" in capsys.readouterr().err
    for wrong in ({"seeds": 0}, {"turns": 0}, {"actions": "knock"}):
        with pytest.raises(InputError, match="expected"):
            check(check_cases.Walk, **wrong)
    with pytest.raises(SystemExit) as stopped:
        checks.main(["support.check_cases:Walk", "--seed", "5"])
    assert stopped.value.code == REFUSED and "--seed 5. Did you mean '--seeds'?" in capsys.readouterr().err


def test_the_command_runs_as_a_module_on_a_built_in_environment():
    done = subprocess.run(
        [sys.executable, "-m", "ragen.tools.check", "bandit", "--seeds", "1", "--turns", "1"],
        capture_output=True,
        text=True,
        cwd=ROOT,
        timeout=60,
    )
    assert done.returncode == NOTHING_TO_FIX, done.stdout + done.stderr
    assert "leaves nothing behind" in done.stdout and not done.stderr
