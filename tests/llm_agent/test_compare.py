"""Two models compared seed by seed, from the records of their trajectories."""

import json

import pytest

from ragen.llm_agent.evaluation.compare import (
    compare,
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


def test_a_comparison_has_shares_their_difference_and_who_was_better_where():
    pairs, _ = pair_up(records("1100000000"), records("1011111110"))
    (one,) = compare(pairs)
    assert (one.pairs, one.a, one.b, one.only_a, one.only_b) == (10, 0.2, 0.8, 1, 7)
    assert one.p == pytest.approx(2 * 9 / 256)
    assert one.low < one.b - one.a < one.high
    assert seed_lines(pairs) == ["A, A better: 101", "A, B better: 102, 103, 104, 105, 106, 107, 108"]


def write(path, lines):
    path.write_text("".join(json.dumps(line) + "\n" for line in lines), "utf-8")
    return str(path)


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


def test_episodes_that_one_of_several_models_lacks_are_left_out_for_all():
    runs, left_out = line_up([records("110"), records("011"), [*records("10"), record(2, 1, error="down")]])
    assert [[one["seed"] for one in run] for run in runs] == [[100, 101]] * 3 and left_out == (0, 1)


def test_every_two_of_several_models_are_compared_and_p_is_corrected():
    runs, _ = line_up([records("0000000000"), records("1111111110"), records("1111111111")])
    found = every_two(runs)
    assert [(a, b) for a, b, _, _ in found] == [(0, 1), (0, 2), (1, 2)]
    assert [one.b - one.a for _, _, one, _ in found] == pytest.approx([0.9, 1.0, 0.1])
    assert [p for *_, p in found] == pytest.approx([2 * one.p for _, _, one, _ in found[:1]] + [3 * found[1][2].p, 1.0])


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
