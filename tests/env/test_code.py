"""Code: problems with solutions, verdicts, and data sets; programs are run in the sandbox where there is one."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from ragen.env.code.config import CodeEnvConfig
from ragen.env.code.env import CodeEnv
from ragen.env.code.problems import Case, Problem, equal, judge
from ragen.env.deepcoder.config import DeepCoderEnvConfig
from ragen.env.deepcoder.env import DeepCoderEnv
from ragen.env.sandbox.host import Ended
from support.sandboxes import needs_programs


def env_of(**settings: Any) -> CodeEnv:
    return CodeEnv(CodeEnvConfig(max_tries=20, **settings))


def rows(tmp_path: Path, *rows: dict[str, Any]) -> str:
    path = tmp_path / "rows.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return str(path)


def solution(env: CodeEnv) -> str:
    assert env.problem is not None
    return env.problem.solution


# Verdicts


@pytest.mark.parametrize(
    "line", [[1, "gave", 1], [0, "said", 1], [0, "gave"], {"0": 1}, 5, None, [True, "gave", 1], [[0], "gave", 1]]
)
def test_a_line_that_is_no_result_ends_the_results(line: Any) -> None:
    ended = Ended("", 0, {}, json.dumps(line).encode() + b'\n[0, "gave", 1]\n')
    assert judge(Problem("", "f", (Case(1, (0,)),), examples=1), ended).passed == (False,)


@pytest.mark.parametrize(
    ("given", "expected", "same"),
    [
        ([1, (2, 3)], (1, [2, 3]), True),
        (1, 1.0, True),
        (True, 1, False),
        (0.1 + 0.2, 0.3, True),
        ({"a": [1]}, {"a": (1,)}, True),
        ({1, 2}, {2, 1}, True),
        ("1", 1, False),
        (None, None, True),
        (float("nan"), float("nan"), False),
        (10**400, 1.5, False),
    ],
)
def test_values_are_the_same_where_a_reader_would_say_so(given: Any, expected: Any, same: bool) -> None:
    assert equal(given, expected) is same


# The environment


@needs_programs
def test_every_generated_problem_is_solved_by_its_solution() -> None:
    env = env_of()
    for seed in range(40):
        env.reset(seed)
        observation, reward, done, info = env.step(solution(env))
        assert (reward, done, info["success"], info["runnable"]) == (1.0, True, True, True), observation
    env.close()


@needs_programs
def test_a_reward_is_the_share_of_tests_that_no_program_has_passed_before() -> None:
    env = env_of(families=["count_above"], tests=4)
    env.reset(1)
    assert env.problem is not None
    half = {str(test.args): test.expected for test in env.problem.tests[:2]}
    program = f"def count_above(numbers): return {half!r}.get(str((numbers,)))"
    share = sum(str(test.args) in half for test in env.problem.tests) / 4
    assert env.step(program)[1] == share >= 0.5
    again = env.step(program)
    assert again[1] == 0.0
    assert again[3]["passed_tests"] == 4 * share
    text, reward, done, _ = env.step(solution(env))
    assert (text, reward, done) == ("Tests passed: 4 of 4.", 1 - share, True)
    env.close()


# Data sets


FUNCTIONAL = {
    "problem": "Add two numbers.",
    "starter_code": "class Solution:\n    def add(self, a: int, b: int) -> int:\n",
    "metadata": {"func_name": "add"},
    "tests": json.dumps([{"input": "1\n2", "output": "3", "testtype": "functional"}]),
}
STDIN = {"problem": "Double.", "tests": [{"input": "4\n", "output": "8", "testtype": "stdin_stdout"}]}
LISTS = {"question": "Double.", "tests": {"inputs": ["4\n", "5"], "outputs": ["8\n", "10"]}}
DOUBLE = "print(2 * int(input()))"


@needs_programs
@pytest.mark.parametrize(
    ("row", "programs"),
    [
        (FUNCTIONAL, ["        return a + b", "def add(self, a, b):\n    return a + b", "def add(a, b): return a + b"]),
        (FUNCTIONAL, ["class Solution:\n    def add(self, a, b): return a + b"]),
        (STDIN, [DOUBLE, "import sys\nsys.stdout.write(str(2 * int(sys.stdin.read())))\nsys.exit(0)"]),
        (STDIN, ["if __name__ == '__main__':\n    print(2 * int(open(0).read()))"]),
        (LISTS, [DOUBLE]),
    ],
)
def test_rows_of_several_forms_are_played(row: dict[str, Any], programs: list[str], tmp_path: Path) -> None:
    env = env_of(dataset=rows(tmp_path, row))
    for program in programs:
        env.reset(1)
        text, reward, done, _ = env.step(program)
        assert (reward, done) == (1.0, True), text
    env.reset(1)
    assert env.step("x = 1")[1] == 0.0
    env.close()


# DeepCoder


@needs_programs
def test_deepcoder_has_ragens_rewards_texts_and_infos(tmp_path: Path) -> None:
    env = DeepCoderEnv(DeepCoderEnvConfig(dataset_path=rows(tmp_path, LISTS), max_steps=2))
    problem = env.reset(1)
    text, reward, done, info = env.step(" ")
    assert (reward, done, info["error"], env.render()) == (0.0, False, "Empty action", text)
    text, reward, done, info = env.step("print(8)")
    assert (reward, done, info["success"], info["pass_reward"]) == (0.5, False, False, 0.5)
    assert text.startswith(f"{problem}\n\nFeedback: Passed 1/2 tests. Test 2: ")
    assert env.step(DOUBLE)[:3] == ("Correct!", 1.0, True)
    env.reset(1)
    env.step("1")
    assert env.step("1")[:3] == ("Incorrect.", 0.0, True)
    env.close()
