from __future__ import annotations

import json
import re
from fractions import Fraction
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ragen.env.countdown.arithmetic import ExpressionError, evaluate
from ragen.env.countdown.config import PACKAGED_PUZZLES, CountdownEnvConfig
from ragen.env.countdown.env import CountdownEnv
from ragen.env.countdown.solver import solve


def env_with(numbers: list[int], target: int, tmp_path: Path, **more: Any) -> CountdownEnv:
    """An environment with one puzzle, just reset; the puzzle has to be one that plus and minus can solve."""
    path = tmp_path / "one.jsonl"
    path.write_text(json.dumps({"nums": numbers, "target": target}))
    env = CountdownEnv(CountdownEnvConfig(train_path=str(path), **more))
    env.reset(0)
    return env


def by_pythons_parser(text: str) -> Fraction:
    """The value that Python's own grammar gives an expression of whole numbers; another road to the same answer."""
    return eval(re.sub(r"\d+", r"Fraction(\g<0>)", text), {"Fraction": Fraction})


BLANKS = st.sampled_from(["", "", " ", "\t"])


def combined(parts: st.SearchStrategy[str]) -> st.SearchStrategy[str]:
    binary = st.tuples(parts, BLANKS, st.sampled_from("+-*/"), BLANKS, parts).map("".join)
    signed = st.tuples(st.sampled_from("+-"), parts).map("".join)
    return binary | signed | parts.map(lambda part: f"({part})")


@settings(deadline=None, max_examples=200)
@given(st.recursive(st.sampled_from(["0", "1", "2", "7", "12", "101"]), combined, max_leaves=8))
def test_an_expression_has_pythons_value_as_a_fraction(text: str) -> None:
    try:
        expected = by_pythons_parser(text)
    except ZeroDivisionError:
        with pytest.raises(ExpressionError):
            evaluate(text)
        return
    assert evaluate(text) == expected


@pytest.mark.parametrize(
    "text",
    [
        "",
        "1 2",
        "07",
        "1 = 1",
        "x",
        "abs(1)",
        "'1'",
        "1 / 0",
        "1.5",
        "1e3",
        "1_0",
        "0x1f",
        "1 // 1",
        "2 ** 3",
        "3 << 4",
        "3 # 4",
        "3 if 4 else 5",
        "(3 := 4)",
        "１ + ２",
        "٣",
        "2 − 1",
        "1\u00a0+ 1",
        "1\0",
        "__import__('os').system('echo')",
        "(" * 100_000,
        "-" * 9_000 + "1",
        "(" * 9_000 + "1" + ")" * 9_000,
        "1" * 9_000,
        "99999999*" * 1_000 + "1",
        "+".join(f"1/{number}" for number in range(1, 1_500)),
    ],
)
def test_whatever_is_no_expression_of_whole_numbers_is_refused(text: str) -> None:
    with pytest.raises(ExpressionError):
        evaluate(text)


@pytest.mark.parametrize(
    ("answer", "reward"),
    [
        ("3 + 5 + 8", 1),
        ("(8 + 5) + 3", 1),
        ("8 * 5 - 3", 0.1),
        ("3 + 5 + 8 = 16", 0),
        ("3 + 5", 0),
        ("3 + 5 + 8 + 8", 0),
        ("the sum of 3, 5 and 8", 0.1),
        ("３+５+８", 0.1),
        ("3 + 5 + 08", 0.1),
        ("8 - -5 + 3", 1),
        ("8 + 5 + 3 # well", 0.1),
        ("8 * 5 - 3 # 16", 0),
        ("", 0),
    ],
)
def test_an_answer_scores_by_its_numbers_and_its_value(answer: str, reward: float, tmp_path: Path) -> None:
    env = env_with([3, 5, 8], 16, tmp_path)
    text, got, done, info = env.step(answer)
    assert (got, type(got), done) == (reward, type(reward), True)
    assert text == f"Your answer get {reward} points." == env.render()
    assert info == {"action_is_effective": reward > 0, "action_is_valid": True, "success": reward == 1}


def test_all_packaged_puzzles_have_a_solution() -> None:
    env = CountdownEnv()
    counts = {mode: len(env._puzzles(mode)) for mode in ("train", "val")}
    assert sum(counts.values()) == len(PACKAGED_PUZZLES.read_text().splitlines())
    for mode, seed in ((mode, seed) for mode, count in counts.items() for seed in range(count)):
        env.reset(seed, mode)
        answer = solve(list(env.puzzle.numbers), env.puzzle.target)
        assert answer is not None
        assert env.step(answer)[1] == 1
