"""Two models compared seed by seed, from the rows of their trajectories."""

import json

import pytest

from ragen.results.compare import compare, line_up, main, seed_differences


def row(env_id, success, tag="A", seed=None, group_id=None, **more):
    group_id = env_id if group_id is None else group_id
    return {
        "env_id": env_id,
        "group_id": group_id,
        "tag": tag,
        "seed": 100 + group_id if seed is None else seed,
        "success": bool(success),
        "actions": [[1]],
        "rewards": [float(success)],
    } | more


def rows(outcomes):
    return [row(env_id, int(success)) for env_id, success in enumerate(outcomes)]


@pytest.mark.parametrize(
    ("a", "b", "differences", "left_out"),
    [
        ([row(0, 1, seed=1), row(1, 0, seed=2)], [row(7, 1, seed=2), row(9, 0, seed=1)], {1: -1.0, 2: 1.0}, (0, 0)),
        ([row(0, 1, group_id=0), row(1, 0, group_id=0)], [row(0, 0), row(1, 0, group_id=0)], {100: -0.5}, (0, 0)),
        (
            [*rows("11"), row(2, 0, error="down"), row(3, 1)],
            [*rows("01"), row(2, 1), row(4, 1)],
            {100: -1.0, 101: 0.0},
            (2, 1),
        ),
        ([row(0, 1, env_error="crashed")], [row(0, 1)], {}, (0, 1)),
    ],
    ids=["by seed", "members in order", "unplayed or unanswered", "failed"],
)
def test_episodes_are_paired_by_tag_seed_and_place_and_what_cannot_be_judged_is_left_out(a, b, differences, left_out):
    pairs, *counts = line_up(a, b)
    found = seed_differences(pairs)
    assert {seed: value for (_, seed), value in found.items()} == differences and tuple(counts) == left_out


def test_a_comparison_has_shares_their_difference_and_seeds():
    (one,) = compare(list(zip(rows("1100000000"), rows("1011111110"), strict=True)))
    assert (one.pairs, one.a, one.b, one.only_a, one.only_b) == (10, 0.2, 0.8, 1, 7)
    assert one.p == pytest.approx(2 * 9 / 256)
    assert one.low < one.b - one.a < one.high


def write(path, lines):
    path.write_text("".join(json.dumps(line) + "\n" for line in lines), "utf-8")
    return str(path)


def test_the_command_prints_every_number_on_a_narrow_terminal(tmp_path, capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "40")
    runs = [write(tmp_path / f"{name}.jsonl", rows("1010")) for name in "ab"]
    assert main([*runs, "--seeds"]) == 0
    words = capsys.readouterr().out.split()
    assert {"50.0%", "+0.0%", "0:0", "1.000", "p"} <= set(words)


@pytest.mark.parametrize(
    "content", [None, '{"env_id": 0}\n', "not json\n\n", "[1]\n\n", "", json.dumps(row(0, 1, seed=3)) + "\n"]
)
def test_bad_files_are_one_sentence_and_exit_code_2(content, tmp_path, capsys):
    if content is not None:
        (tmp_path / "b.jsonl").write_text(content)
    assert main([write(tmp_path / "a.jsonl", rows("1")), str(tmp_path / "b.jsonl")]) == 2
    err = capsys.readouterr().err
    assert str(tmp_path / "b.jsonl") in err and err.count("\n") == 1
