"""The comparison of both simulators: what a row says, and the command."""

import json
import random

import pytest

from ragen.cage2 import compare, layout
from ragen.cage2.compare import POLICIES, Contest, ReactRestore, Sample, as_table, mean_of, rate_of, row
from ragen.cage2.env import Cage2Config


def test_an_interval_holds_the_true_mean_19_times_in_20():
    rng = random.Random(0)
    hits = 0
    for _ in range(400):
        found = mean_of([rng.gauss(3.0, 2.0) for _ in range(50)])
        hits += abs(found.mean - 3.0) <= found.pm
    assert 0.92 < hits / 400 < 0.98


def test_a_rate_knows_that_tries_of_one_episode_hang_together():
    together = rate_of([10, 0, 10, 0], [10, 10, 10, 10])
    apart = rate_of([5, 5, 5, 5], [10, 10, 10, 10])
    assert together.mean == apart.mean == 0.5
    assert together.pm > 5 * apart.pm > 0


def test_rows_agree_where_chance_may_have_made_the_difference():
    assert row("x", Sample(1.0, 0.01), Sample(1.2, 0.01)).agrees
    apart = row("x", Sample(1.0, 0.01), Sample(2.0, 0.01))
    assert not apart.agrees
    assert "1 of 1 rows (*) lie outside" in as_table([apart])


def test_react_restore_restores_what_shows_after_a_monitor_and_leaves_the_foothold():
    policy, bits = ReactRestore(0), [0] * 52
    assert policy.act(bits) == layout.MONITOR
    for host in (layout.INDEX["User2"], layout.INDEX["User0"], layout.INDEX["Op_Host1"]):
        bits[4 * host : 4 * host + 4] = [1, 1, 0, 1]
    shown = [policy.act(bits), policy.act(bits), policy.act(bits)]
    assert [layout.action_name(each) for each in shown] == ["Restore Op_Host1", "Restore User2", "Monitor"]
    assert policy.act([0] * 52) == layout.MONITOR


@pytest.mark.parametrize("policy", POLICIES)
def test_an_episode_follows_from_its_seed(policy):
    config = Cage2Config.of("meander", 60, "embedded")
    first, again = Contest(config), Contest(config)
    assert [first.episode(policy, seed) for seed in range(4)] == [again.episode(policy, seed) for seed in range(4)]


def test_the_simulator_agrees_with_itself():
    configs = [Cage2Config.of("b_line", 100, "embedded")] * 2
    both = [compare.played(config, "random", 60, 1000 * seed, 0) for seed, config in enumerate(configs)]
    rows = compare.rows_of("b_line", "random", *both)
    assert len(rows) > 10
    assert sum(not each.agrees for each in rows) <= 4


def test_a_row_outside_its_interval_is_found():
    """The comparison has to see what it is for: here, the other simulator without its quirks."""
    configs = [Cage2Config.of("b_line", 100, "embedded", bugs=bugs) for bugs in ("faithful", "fixed")]
    rows = compare.rows_of("b_line", "random", *[compare.played(config, "random", 80, 0, 0) for config in configs])
    assert not next(each for each in rows if each.what == "random, b_line: return").agrees


@pytest.mark.processes
def test_the_command_prints_a_table_and_writes_it(cage2_path, tmp_path, capsys):
    path = tmp_path / "rows.json"
    given = ["--episodes", "4", "--steps", "20", "--red", "b_line", "--policy", "Sleep", "--workers", "2"]
    assert compare.main([*given, "--cage2-path", str(cage2_path), "--json", str(path)]) == 0
    printed = capsys.readouterr().out
    assert "| Sleep, b_line: return | -" in printed and "are expected by chance" in printed
    rows = json.loads(path.read_text())
    assert all(set(each) >= {"what", "embedded", "cage2", "difference", "pm"} for each in rows)


def test_the_command_says_what_is_missing(capsys):
    assert compare.main(["--cage2-path", "/nowhere"]) == 2
    assert "cage2_path = '/nowhere'" in capsys.readouterr().err
    assert compare.main(["--json", "/nowhere/rows.json"]) == 2
    assert "--json is '/nowhere/rows.json'" in capsys.readouterr().err
    assert compare.main(["--episodes", "1"]) == 2
