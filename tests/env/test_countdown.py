from __future__ import annotations

import ast
import json
import operator
import time
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ragen.env.countdown import generate
from ragen.env.countdown.arithmetic import MAX_DEPTH, ExpressionError, evaluate
from ragen.env.countdown.config import PACKAGED_PUZZLES, CountdownEnvConfig
from ragen.env.countdown.env import CountdownEnv
from ragen.env.countdown.puzzles import load_puzzles
from ragen.env.countdown.scoring import uses_each_once
from ragen.env.countdown.solver import solve
from ragen.errors import ConfigError, InputError
from support import env_contract


def env_with(numbers: list[int], target: int, tmp_path: Path, **more: Any) -> CountdownEnv:
    """An environment with one puzzle, just reset; the puzzle has to be one that plus and minus can solve."""
    path = tmp_path / "one.jsonl"
    path.write_text(json.dumps({"nums": numbers, "target": target}))
    env = CountdownEnv(CountdownEnvConfig(train_path=str(path), **more))
    env.reset(0)
    return env


OPERATORS = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.truediv,
    ast.FloorDiv: operator.floordiv,
    ast.Mod: operator.mod,
    ast.Pow: operator.pow,
    ast.BitOr: operator.or_,
    ast.BitXor: operator.xor,
    ast.BitAnd: operator.and_,
    ast.LShift: operator.lshift,
    ast.RShift: operator.rshift,
    ast.UAdd: operator.pos,
    ast.USub: operator.neg,
    ast.Invert: operator.invert,
}


def by_pythons_parser(text: str) -> Any:
    """The value that Python's own grammar gives an arithmetic expression; another road to the same answer."""

    def value(node: ast.AST) -> Any:
        if isinstance(node, ast.BinOp):
            return OPERATORS[type(node.op)](value(node.left), value(node.right))
        if isinstance(node, ast.UnaryOp):
            return OPERATORS[type(node.op)](value(node.operand))
        assert isinstance(node, ast.Constant)
        return node.value

    return value(ast.parse(text.lstrip(" \t"), mode="eval").body)


NUMBERS = st.sampled_from(["0", "1", "2", "7", "12", "3.5", ".5", "4.", "1e2", "1_0", "07", "0x1f", "00", "1__0", "5_"])
BLANKS = st.sampled_from(["", "", " ", "\t", "  ", "\n", " # so\n"])


OPERATOR_SIGNS = ("+", "-", "*", "/", "//", "%", "&", "|", "^", ">>")


def combined(parts: st.SearchStrategy[str]) -> st.SearchStrategy[str]:
    binary = st.tuples(parts, BLANKS, st.sampled_from(OPERATOR_SIGNS), BLANKS, parts).map("".join)
    unary = st.tuples(st.sampled_from("+-~"), parts).map("".join)
    power = st.tuples(parts, st.sampled_from(["**", " ** "]), st.sampled_from(["2", "-1", "0.5", "(1 - 2)"])).map(
        "".join
    )
    return binary | unary | power | parts.map(lambda part: f"({part})")


@settings(deadline=None, max_examples=400)
@given(st.recursive(NUMBERS, combined, max_leaves=8), st.sampled_from(["", "\n", " ", "\n# done"]))
def test_an_expression_has_the_value_that_python_gives_it_or_none_where_python_has_none(text: str, end: str) -> None:
    try:
        expected = by_pythons_parser(text + end)
    except (SyntaxError, ArithmeticError, TypeError, ValueError):
        with pytest.raises(ExpressionError):
            evaluate(text + end)
        return
    ours = evaluate(text + end)
    assert type(ours) is type(expected)
    assert ours == expected or ours != ours


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("2 + 3 * 4", 14),
        ("-2 ** 2", -4),
        ("2 ** 3 ** 2", 512),
        ("2 ** -1", 0.5),
        ("7 // -2", -4),
        ("7 % -3", -2),
        ("1 / 3", 1 / 3),
        ("(1 +\n 2) # three", 3),
        ("6 ^ 3", 5),
        ("1_000", 1000),
        ("(-8) ** (1 / 3)", (-8) ** (1 / 3)),
    ],
)
def test_the_value_is_pythons(text: str, value: complex) -> None:
    assert evaluate(text) == value


@pytest.mark.parametrize(
    "text",
    [
        "",
        "()",
        "1 +",
        "1 2",
        "1 +\n2",
        "\n 1",
        "07",
        "1 = 1",
        "1 == 1",
        "1 and 2",
        "True",
        "x",
        "abs(1)",
        "(1).real",
        "[1][0]",
        "1 if 2 else 3",
        "'1'",
        "1 / 0",
        "1.5 | 2",
        "１ + ２",
        "2 × 3",
        "1\0",
        "__import__('os').system('echo')",
        "(lambda: 1)()",
        "9 ** 9 ** 9",
        "1 << 10 ** 9",
        "1 << -1",
        "2.0 ** 99999",
        "(" * 100_000,
        "-" * 9_000 + "1",
        "(" * 9_000 + "1" + ")" * 9_000,
        "1" * 9_000,
    ],
)
def test_whatever_is_no_expression_is_refused_at_once(text: str) -> None:
    start = time.process_time()
    with pytest.raises(ExpressionError):
        evaluate(text)
    assert time.process_time() - start < 0.5, "it takes well under a millisecond; what this catches takes minutes"


def test_nesting_is_allowed_as_deep_as_a_person_would() -> None:
    depth = MAX_DEPTH - 2
    assert evaluate("(" * depth + "1" + ")" * depth) == 1


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
        ("", 0),
    ],
)
def test_an_answer_scores_by_its_numbers_and_its_value(answer: str, reward: float, tmp_path: Path) -> None:
    env = env_with([3, 5, 8], 16, tmp_path)
    text, got, done, info = env.step(answer)
    assert (got, type(got), done) == (reward, type(reward), True)
    assert text == f"Your answer get {reward} points." == env.render()
    assert info == {"action_is_effective": reward > 0, "action_is_valid": True, "success": reward == 1}


def test_the_scores_can_be_set(tmp_path: Path) -> None:
    env = env_with([3, 5, 8], 16, tmp_path, score=5, format_score=0.25)
    assert env.step("3+5+8")[1] == 5
    assert env.step("3*5*8")[1] == 0.25
    assert env.step("3")[1] == 0


@pytest.mark.parametrize("text", ["7" * 9_000, "1 " * 4_000, "x" * 1_000_000, "٧" * 5_000])
def test_long_runs_of_digits_are_not_the_numbers(text: str) -> None:
    assert not uses_each_once(text, [7])


def test_the_packaged_puzzles_are_those_the_generator_makes_and_all_have_a_solution() -> None:
    assert PACKAGED_PUZZLES.read_text() == "".join(f"{line}\n" for line in generate.lines())
    env = CountdownEnv()
    assert len(env._puzzles()) == generate.COUNT
    for seed in range(generate.COUNT):
        env.reset(seed)
        answer = solve(list(env.puzzle.numbers), env.puzzle.target)
        assert answer is not None
        assert env.step(answer)[1] == 1


@pytest.mark.parametrize(
    ("numbers", "target"),
    [([3, 7, 5, 9], 100), ([6, 4], 24), ([7, 5], -12), ([2, 3, 7, 11, 50], 301), ([8], 8), ([100, 4], 25)],
)
def test_the_solver_uses_each_number_once(numbers: list[int], target: int) -> None:
    answer = solve(numbers, target)
    assert answer is not None
    assert uses_each_once(answer, numbers)
    assert evaluate(answer) == target


@pytest.mark.parametrize(("numbers", "target"), [([1, 1, 1], 50), ([], 0), ([-3, 4], 1)])
def test_the_solver_says_so_when_it_finds_nothing(numbers: list[int], target: int) -> None:
    assert solve(numbers, target) is None


def test_seeds_count_through_the_puzzles_and_start_over() -> None:
    env = CountdownEnv(CountdownEnvConfig(max_instances=10))
    assert env.reset(3) == env.reset(13) != env.reset(4)


def test_two_environments_share_one_reading_of_the_file() -> None:
    one, other = CountdownEnv(), CountdownEnv()
    assert one._puzzles() is other._puzzles()
    assert not any(value is one._puzzles() for value in vars(one).values())


def test_a_relative_path_is_found_again_from_another_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "p.jsonl").write_text('{"nums": [1, 2], "target": 3}')
    monkeypatch.chdir(tmp_path)
    env = CountdownEnv(CountdownEnvConfig(train_path="p.jsonl"))
    monkeypatch.chdir("/")
    load_puzzles.cache_clear()
    assert env.reset(0) == "Target: 3, nums: [1, 2]"


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ('{"numbers": [1, 2], "target": 3}', "no column 'nums'; it has 'numbers', 'target'"),
        ('{"nums": "1, 2", "target": 3}', "expected a list of integers"),
        ('{"nums": [1, true], "target": 3}', "expected a list of integers"),
        ('{"nums": [1, 2], "target": "3"}', "expected numbers and an integer"),
        ('{"nums": [], "target": 0}', "expected numbers and an integer"),
        ('{"nums": [1, 2], "target": 50}', "none of the first 1 rows"),
        ("", "none of the first 0 rows"),
        ("[1, 2]", "expected an object"),
        ("nonsense", "not readable as JSON rows"),
    ],
)
def test_a_bad_data_file_is_a_config_error_when_the_environment_is_built(
    content: str, message: str, tmp_path: Path
) -> None:
    path = tmp_path / "bad.jsonl"
    path.write_text(content)
    with pytest.raises(ConfigError, match=message) as caught:
        CountdownEnv(CountdownEnvConfig(train_path=str(path)))
    assert f"train_path={str(path)!r}" in str(caught.value)


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("train_path", "no/such/file.parquet"),
        ("train_path", ""),
        ("train_path", 3),
        ("max_instances", 0),
        ("score", "1"),
        ("format_score", None),
        ("render_format", "html"),
        ("render_mode", "rgb_array"),
    ],
)
def test_a_bad_value_is_a_config_error_that_names_key_and_value(key: str, value: object) -> None:
    env_contract.assert_refused(CountdownEnvConfig, key, value)


def test_a_seed_below_zero_is_refused() -> None:
    with pytest.raises(InputError, match="seed = -1"):
        CountdownEnv().reset(-1)
