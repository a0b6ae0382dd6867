"""Two models compared seed by seed, from the records of their trajectories."""

import json
from io import StringIO

import pytest
from rich.console import Console

from ragen.llm_agent.evaluation.compare import (
    Comparison,
    compare,
    comparison_tables,
    every_two,
    line_up,
    main,
    pair_up,
    seed_differences,
    seed_lines,
)


def record(env_id, success, tag="A", seed=None, group_id=None, **more):
    group_id = env_id if group_id is None else group_id
    seed = 100 + group_id if seed is None else seed
    reward = [1.0 if success else 0.0]
    return {
        "env_id": env_id, "group_id": group_id, "tag": tag, "seed": seed, "success": bool(success), "actions": [[1]],
        "rewards": reward,
    } | more  # fmt: skip


def records(outcomes, **more):
    return [record(env_id, int(success), **more) for env_id, success in enumerate(outcomes)]


def test_in_a_narrow_terminal_a_comparison_names_both_runs_and_stays_within_it(tmp_path, capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "60")
    for name, outcomes in (("first", "1100"), ("second", "1011"), ("third", "1111")):
        (tmp_path / name).mkdir()
        write(tmp_path / name / "rollouts.jsonl", records(outcomes, tag="SimpleSokoban"))
    runs = [str(tmp_path / name) for name in ("first", "second", "third")]
    for compared in (runs[:2], runs):
        assert main(compared) == 0
        shown = capsys.readouterr().out
        assert "A: first, B: second" in shown and max(map(len, shown.splitlines())) <= 60


def test_episodes_are_paired_by_tag_and_seed_wherever_they_stand_in_the_file():
    a = [record(0, 1, seed=1), record(1, 0, seed=2)]
    b = [record(7, 1, seed=2), record(9, 0, seed=1)]
    pairs, left_out = pair_up(a, b)
    assert [(pair.seed, pair.difference) for pair in pairs] == [(1, -1.0), (2, 1.0)] and not any(left_out)


def test_members_of_a_group_are_paired_in_their_order():
    a = [record(0, 1, group_id=0), record(1, 0, group_id=0)]
    b = [record(0, 0, group_id=0), record(1, 0, group_id=0)]
    pairs, _ = pair_up(a, b)
    assert [pair.difference for pair in pairs] == [-1.0, 0.0]
    assert seed_differences(pairs) == {("A", 100): -0.5}


def test_episodes_of_one_model_alone_and_those_without_a_reply_are_left_out():
    a = [*records("11"), record(2, 0, error="down"), record(3, 1)]
    b = [*records("01"), record(2, 1), record(4, 1)]
    pairs, left_out = pair_up(a, b)
    assert [pair.seed for pair in pairs] == [100, 101]
    assert left_out.describe() == (
        "Left out: 2 episodes (not played by every run) and 1 episode (a prompt has no reply, or the environment "
        "failed)."
    )


def test_the_same_seed_of_two_tags_is_two_episodes():
    pairs, _ = pair_up([record(0, 1, seed=5), record(1, 0, "B", seed=5)], [record(0, 1, "B", seed=5)])
    assert [(pair.tag, pair.difference) for pair in pairs] == [("B", 1.0)]


def test_a_comparison_has_shares_their_difference_and_who_was_better_where():
    pairs, _ = pair_up(records("1100000000"), records("1011111110"))
    (one,) = compare(pairs)
    assert (one.pairs, one.a, one.b, one.only_a, one.only_b) == (10, 0.2, 0.8, 1, 7)
    assert one.p == pytest.approx(2 * 9 / 256)
    assert one.low < one.b - one.a < one.high
    assert seed_lines(pairs) == ["A, A better: 101", "A, B better: 102, 103, 104, 105, 106, 107, 108"]


def test_several_tags_have_a_row_each_and_one_of_all():
    a = [*records("10"), record(2, 1, "B"), record(3, 1, "B")]
    results = compare(pair_up(a, a)[0])
    assert [(one.tag, one.pairs, one.a) for one in results] == [("A", 2, 0.5), ("B", 2, 1.0), ("all", 4, 0.75)]
    assert all(one.p == 1.0 and one.low < 0 < one.high for one in results)


def write(path, lines):
    path.write_text("".join(json.dumps(line) + "\n" for line in lines), "utf-8")
    return str(path)


def test_the_command_prints_a_table_and_the_seeds(tmp_path, capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "40")  # nothing is cut off
    a = write(tmp_path / "a.jsonl", records("1100"))
    b = write(tmp_path / "b.jsonl", records("110"))
    assert main([a, b, "--seeds"]) == 0
    out = capsys.readouterr().out
    assert "66.7%" in out and "1 episode (not played by every" in " ".join(out.split()) and "seeds A:B" in out


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (None, "cannot be read (No such file"),
        ('{"env_id": 0}\n', "line 1 of"),
        ("not json\n\n", "line 1 of"),
        ("[1]\n\n", "line 1 of"),
        ("", "have no episode of the same tag and seed"),
        (json.dumps(record(0, 1, seed=3)) + "\n", "have no episode of the same tag and seed"),
    ],
)
def test_bad_files_are_one_sentence_and_exit_code_2(content, said, tmp_path, capsys):
    if content is not None:
        (tmp_path / "b.jsonl").write_text(content)
    assert main([write(tmp_path / "a.jsonl", records("1")), str(tmp_path / "b.jsonl")]) == 2
    err = capsys.readouterr().err
    assert said in err and err.count("\n") == 1


def test_a_misspelled_folder_is_suggested_as_the_user_named_it(tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "runs/clever").mkdir(parents=True)
    write(tmp_path / "runs/clever/rollouts.jsonl", records("1"))
    assert main(["runs/clever", "runs/clevr"]) == 2
    assert "Did you mean 'runs/clever'?" in capsys.readouterr().err
    assert main(["runs", "runs/clever"]) == 2
    assert "Did you mean 'runs/clever'?" in capsys.readouterr().err
    assert main(["runs/clever", "rnus/clever/rollouts.jsonl"]) == 2
    assert "expected the folder of a run, or its rollouts.jsonl.\n" in capsys.readouterr().err


def test_a_difference_that_rounds_to_zero_has_no_minus():
    tables = comparison_tables([Comparison("A", 9, 0.1, 0.1 - 1e-9, -1e-9, 0.1, 0, 0, 1.0)], ["a", "b"], 120)
    console = Console(file=StringIO(), width=120)
    console.print(*tables)
    assert "+0.0%" in console.file.getvalue() and "-0.0%" not in console.file.getvalue()


def test_episodes_that_one_of_several_models_lacks_are_left_out_for_all():
    runs, left_out = line_up([records("110"), records("011"), [*records("10"), record(2, 1, error="down")]])
    assert [[one["seed"] for one in run] for run in runs] == [[100, 101]] * 3 and left_out == (0, 1)


def test_every_two_of_several_models_are_compared_and_p_is_corrected():
    runs, _ = line_up([records("0000000000"), records("1111111110"), records("1111111111")])
    found = every_two(runs)
    assert [(a, b) for a, b, _, _ in found] == [(0, 1), (0, 2), (1, 2)]
    assert [one.b - one.a for _, _, one, _ in found] == pytest.approx([0.9, 1.0, 0.1])
    assert [p for *_, p in found] == pytest.approx([2 * one.p for _, _, one, _ in found[:1]] + [3 * found[1][2].p, 1.0])


def test_a_run_that_is_named_twice_is_told(tmp_path, capsys):
    a, b = (write(tmp_path / name, records("1100")) for name in ("a.jsonl", "b.jsonl"))
    assert main([a, b]) == 0 and "named twice." not in capsys.readouterr().out
    assert main([a, a]) == 0 and f"{a} is named twice." in capsys.readouterr().out.replace("\n", "")


def test_equal_trajectories_are_told(tmp_path, capsys):
    a, b, c = (
        write(tmp_path / f"{name}.jsonl", records(won)) for name, won in zip("abc", ("10", "10", "11"), strict=True)
    )
    assert main([a, b]) == 0 and f"{a} and {b} are equal." in capsys.readouterr().out
    assert main([a, c]) == 0 and " are equal." not in capsys.readouterr().out


def test_several_models_are_a_board_with_pass_at_k_and_pass_hat_k(tmp_path, capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "40")  # nothing is cut off
    runs = []
    for name, outcomes in (("a", "1100"), ("b", "1010"), ("c", "1111")):
        rows = [record(at, int(won), group_id=at // 2) for at, won in enumerate(outcomes)]
        (tmp_path / name).mkdir()
        write(tmp_path / name / "rollouts.jsonl", rows)
        runs.append(str(tmp_path / name))
    assert main(runs) == 0
    lines = [line.split() for line in capsys.readouterr().out.splitlines()]
    assert ["run", "A", "pass@2", "pass^2"] in lines
    for row in ("a 50.0% 50.0% 50.0%", "b 50.0% 100.0% 0.0%", "c 100.0% 100.0% 100.0%"):
        assert row.split() in lines
    pairs = dict.fromkeys(" ".join(line[:4]) for line in lines if line[:1] == ["A:"])
    assert [*pairs] == ["A: a, B: b", "A: a, B: c", "A: b, B: c"]


def test_no_p_is_shown_as_zero(tmp_path, capsys):
    a, b = (write(tmp_path / f"{won}.jsonl", records(won * 12)) for won in "01")
    assert main([a, b]) == 0
    assert "<0.001" in capsys.readouterr().out


@pytest.mark.parametrize("columns", [None, "40"])
def test_a_table_keeps_each_line_whole(columns, tmp_path, capsys, monkeypatch):
    monkeypatch.delenv("COLUMNS", raising=False)
    if columns is not None:
        monkeypatch.setenv("COLUMNS", columns)
    tag = "ATagWhoseNameIsLong" * 4
    for name, outcomes in (("first", "1100"), ("second", "110")):
        (tmp_path / name).mkdir()
        write(tmp_path / name / "rollouts.jsonl", records(outcomes, tag=tag))
    assert main([str(tmp_path / "first"), str(tmp_path / "second")]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert {line.split()[0] for line in lines if "66.7%" in line} == {tag}
    table = lines[: next(place for place, line in enumerate(lines) if line.startswith("95% interval: of B - A"))]
    assert table == [line.rstrip() for line in table]
    if columns is None:
        assert any(line.startswith("95% interval: of B - A") and line.endswith("an approximation.") for line in lines)
