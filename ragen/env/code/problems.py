"""Problems, their sources, and the verdict on a program."""

from __future__ import annotations

import ast
import copy
import json
import math
import random
from collections.abc import Sequence
from functools import lru_cache
from typing import Any, NamedTuple

from ragen.env.code.families import FAMILIES
from ragen.env.rows import RowSource, is_of, json_objects
from ragen.env.sandbox.host import STOPPED, Ended
from ragen.env.sandbox.inside import decode, encode
from ragen.errors import ConfigError

GENERATED = "generated"
SHOWN = 300  # maximum characters of a value in an observation
LONGEST = 1 << 20  # maximum bytes of output to compare
NEAR = 1e-6  # tolerance for floats, relative and absolute


class Case(NamedTuple):
    """One test of a problem.

    Attributes:
        expected: The return value or the output of a correct program.
        args: The arguments of the function; None if the test is a standard input.
        stdin: The standard input.
    """

    expected: Any
    args: tuple[Any, ...] | None = None
    stdin: str = ""


class Problem(NamedTuple):
    """A problem.

    Attributes:
        text: The statement shown to the player.
        name: The function to write; "" if the program reads standard input and prints.
        tests: The tests, in order. The sandbox receives only their inputs.
        examples: Number of tests whose results the statement shows.
        prelude: Code before the program, such as the start of a class.
        solution: A program that solves it; "" where none is known.
    """

    text: str
    name: str
    tests: tuple[Case, ...]
    examples: int = 0
    prelude: str = ""
    solution: str = ""

    def inputs(self) -> list[dict[str, Any]]:
        """The inputs of the tests for the sandbox, without expected results."""
        if not self.name:
            return [{"stdin": test.stdin} for test in self.tests]
        return [{"call": self.name, "args": [encode(each) for each in test.args or ()]} for test in self.tests]


class Verdict(NamedTuple):
    """The verdict on a program.

    Attributes:
        passed: For each test, whether it passed.
        failure: A description of the first failure; "" if there is none.
        runnable: Whether the program could be loaded and was not stopped.
    """

    passed: tuple[bool, ...]
    failure: str
    runnable: bool


def judge(problem: Problem, ended: Ended) -> Verdict:
    """Judge a run.

    A program that was stopped passes no test, since how far it got depends on the machine.
    """
    failed = (False,) * len(problem.tests)
    if ended.stopped:
        return Verdict(failed, f"The program was stopped: {STOPPED[ended.stopped]}.", False)
    results: list[tuple[str, Any]] = []
    for line in ended.body.split(b"\n"):
        try:
            number, how, what = json.loads(line)
        except (ValueError, TypeError, RecursionError):
            break
        if number in ("syntax", "load") and not results:
            return Verdict(
                failed, f"The program does not {'compile' if number == 'syntax' else 'run'}: {_line(what)}", False
            )
        if number != len(results) or how not in ("gave", "raised") or type(number) is not int:
            break
        results.append((how, what))
    results = results[: len(problem.tests)]
    over = "ended early" if ended.status >= 0 else f"was ended by signal {-ended.status}"
    results += [("raised", f"the program {over}")] * (len(problem.tests) - len(results))
    values = [_value(problem, how, what) for how, what in results]
    passed = [_same(problem, *each) for each in zip(problem.tests, values, strict=True)]
    wrong = next((number for number, ok in enumerate(passed) if not ok), None)
    return Verdict(tuple(passed), "" if wrong is None else _counterexample(problem, wrong, values), True)


class _Raised(Exception):
    """The exception that a program raised, or the reason for a missing result."""


def _value(problem: Problem, how: str, what: Any) -> Any:
    if how == "raised":
        return _Raised(_line(what))
    if not problem.name:
        return what if isinstance(what, str) else _Raised("no output")
    try:
        return decode(what)
    except (ValueError, RecursionError, TypeError, OverflowError, AttributeError, LookupError):
        return _Raised("a result that cannot be read")


def _same(problem: Problem, test: Case, value: Any) -> bool:
    if isinstance(value, _Raised):
        return False
    if not problem.name:
        return _lines(value) == _lines(str(test.expected))
    try:
        return equal(value, test.expected)
    except RecursionError:
        return False


def _lines(text: str) -> list[str]:
    return [line.rstrip() for line in text.strip().splitlines()]


def equal(given: Any, expected: Any) -> bool:
    """Whether two values are equal: a list equals a tuple, floats are compared with a tolerance, True is not 1."""
    if isinstance(given, list | tuple) and isinstance(expected, list | tuple):
        return len(given) == len(expected) and all(map(equal, given, expected))
    if isinstance(given, dict) and isinstance(expected, dict):
        return given.keys() == expected.keys() and all(equal(given[key], expected[key]) for key in given)
    if isinstance(given, bool) or isinstance(expected, bool):
        return given is expected
    numbers = isinstance(given, int | float) and isinstance(expected, int | float)
    if numbers and (isinstance(given, float) or isinstance(expected, float)):
        try:
            return math.isclose(given, expected, rel_tol=NEAR, abs_tol=NEAR)
        except OverflowError:
            return False
    return type(given) is type(expected) and bool(given == expected)


def _counterexample(problem: Problem, number: int, values: Sequence[Any]) -> str:
    test, value = problem.tests[number], values[number]
    asked = f"{problem.name}({', '.join(map(repr, test.args or ()))})" if problem.name else f"the input {test.stdin!r}"
    gave = f"raised {value}" if isinstance(value, _Raised) else f"gave {_short(value)}"
    expected = f", expected {_short(test.expected)}" if number < problem.examples else ""
    return f"Test {number + 1}: {asked if len(asked) <= SHOWN else asked[:SHOWN] + ' ...'} {gave}{expected}."


def _short(value: Any) -> str:
    try:
        text = repr(value)
    except (ValueError, RecursionError):  # an int of too many digits
        text = f"a {type(value).__name__} that cannot be shown"
    return _line(text if len(text) <= SHOWN else f"{text[:SHOWN]} ...")


def _line(text: Any) -> str:
    """A value that a program sent, as encodable and shortened text."""
    return str(text)[: SHOWN + 4].encode("utf-8", "replace").decode("utf-8")


# Generated problems


@lru_cache(maxsize=256)
def generate(seed: int, split: str, levels: tuple[int, ...], families: tuple[str, ...], tests: int) -> Problem:
    """Generate the problem of a seed; cached, since the members of a group share it.

    Args:
        seed: The seed.
        split: ``"train"`` or another name; these two splits share no problem.
        levels: The levels to draw from.
        families: The families to draw from.
        tests: Number of tests.
    """
    names = [name for name in families if FAMILIES[name].level in levels]
    for attempt in range(1000):
        rng = random.Random(f"{seed}/{attempt}")
        family = FAMILIES[rng.choice(names)]
        parameters = family.draw(rng)
        statement = family.statement(parameters)
        if is_of(split, statement):
            break
    else:
        raise ConfigError(f"code: the families {names} have no problem for the split {split!r}; add more families.")
    source = family.solution(parameters)
    space: dict[str, Any] = {}
    exec(source, space)  # trusted: the family's own solution
    drawn = [tuple(draw(rng, number + 1) for draw in family.inputs) for number in range(tests)]
    made = [Case(space[family.name](*copy.deepcopy(args)), args) for args in drawn]
    examples = min(2, tests)
    shown = "".join(f"\n{family.name}({', '.join(map(repr, t.args or ()))}) is {t.expected!r}" for t in made[:examples])
    return Problem(f"{statement}\nExamples:{shown}", family.name, tuple(made), examples, solution=source)


# Rows of a file


@lru_cache(maxsize=4)
def rows_of(path: str) -> tuple[dict[str, Any], ...]:
    """The rows of a JSONL file.

    Raises:
        ConfigError: The file cannot be read, or is empty.
    """
    source = RowSource("code", "dataset", path)
    rows = tuple(json_objects(source))
    if not rows:
        raise source.error("there are no rows.")
    return rows


def problem_of_row(row: dict[str, Any], where: str) -> Problem:
    """The problem in a row of DeepCoder's format.

    Rows have ``problem`` (or ``question``, ``prompt``); ``tests`` (or ``ground_truth``), a list (possibly
    as JSON) of ``{input, output, testtype}``, or ``{inputs, outputs}``; ``metadata.func_name`` for functions; and
    ``starter_code``.

    Raises:
        ConfigError: The row has another format.
    """
    text = next((row[key] for key in ("problem", "question", "prompt") if isinstance(row.get(key), str)), None)
    tests, metadata = _read(row.get("tests") or row.get("ground_truth")), _read(row.get("metadata"))
    if isinstance(tests, dict):
        pairs = zip(tests.get("inputs", ()), tests.get("outputs", ()), strict=False)
        tests = [{**tests, "input": given, "output": output} for given, output in pairs] or [tests]
    try:
        first = tests[0]
        named = first.get("fn_name") or (first.get("metadata") or {}).get("func_name")
        name = (isinstance(metadata, dict) and metadata.get("func_name")) or named or ""
        functional = bool(name) and first.get("testtype", "functional" if "fn_name" in first else "") == "functional"
        made = tuple(_test(test, functional) for test in tests)
    except (LookupError, TypeError, ValueError, AttributeError) as error:
        raise ConfigError(f"code: {where} has no tests that can be read: {type(error).__name__}: {error}.") from error
    if text is None:
        raise ConfigError(f"code: {where} needs a text (problem, question or prompt); it has {sorted(row)}.")
    return Problem(text, str(name) if functional else "", made, prelude=str(row.get("starter_code") or ""))


def _test(test: dict[str, Any], functional: bool) -> Case:
    if not functional:
        given = test["input"]
        return Case(test["output"], stdin=given if isinstance(given, str) else "\n".join(map(str, given)))
    given = test["input"]
    args = [_read(line) for line in given.splitlines() if line.strip()] if isinstance(given, str) else given
    return Case(_read(test["output"]), tuple(args if isinstance(args, list) else [args]))


def _read(value: Any) -> Any:
    """Parse a text as JSON or as a Python literal; any other value is returned unchanged."""
    if not isinstance(value, str):
        return value
    try:
        return json.loads(value)
    except ValueError:
        try:
            return ast.literal_eval(value)
        except (ValueError, SyntaxError, MemoryError, RecursionError):
            return value
