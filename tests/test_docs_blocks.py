"""Blocks of code on the pages: Python is run as it is pasted, and command lines are read by the commands themselves."""

import re
import shlex
from pathlib import Path

import pytest

from ragen.cli.commands import COMMANDS
from ragen.config.loading import load_config

ROOT = Path(__file__).resolve().parents[1]
PAGES = sorted([*(ROOT / "docs").glob("*.md"), *ROOT.glob("*.md"), ROOT / "examples/README.md"])
FENCED = re.compile(r"^```(\w*)\n(.*?)^```", re.M | re.S)

RUN = {  # pages whose Python needs nothing but this package
    "python": 2,
    "cage2": 2,
    "parallel_env_processing": 1,
    "parallel_rollouts": 1,
    "several_machines": 1,
    "vector": 1,
}
"""How many blocks of a page are run, from the first."""

COMPOSED = ("rollout", "eval")


def python_of(page):
    return [code for kind, code in FENCED.findall(page.read_text("utf-8")) if kind == "python"]


@pytest.mark.processes
@pytest.mark.parametrize("name", RUN)
def test_a_block_of_python_runs_as_it_is_pasted(name, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    blocks = python_of(ROOT / "docs" / f"{name}.md")[: RUN[name]]
    assert len(blocks) == RUN[name]
    names = {"__name__": "__main__"}
    for block in blocks:
        exec(compile(block, f"{name}.md", "exec"), names)


@pytest.mark.parametrize("page", [page for page in PAGES if python_of(page)], ids=lambda page: page.stem)
def test_every_block_of_python_is_python_and_imports_what_there_is(page):
    for block in python_of(page):
        compile(block, page.name, "exec")
        for line in re.findall(r"^from ragen\S* import .*$|^import ragen\S*$", block, re.M):
            exec(line, {})


def command_lines():
    """Every line of a block, of any page, that calls a command of this package or a script of the repository."""
    for page in PAGES:
        text = page.read_text("utf-8")
        if page.name in ("CHANGELOG.md",):
            continue
        fenced = [line for kind, code in FENCED.findall(text) if kind in ("", "bash") for line in code.splitlines()]
        indented = [line.strip() for line in FENCED.sub("", text).splitlines() if line.startswith("    ")]
        for line in [*fenced, *indented]:
            line = re.sub(r"^(\$ |[A-Z_]+=\S+ )+", "", line.strip())
            if re.match(r"(ragen|python) ", line) and not line.endswith("\\"):
                yield page.name, line


LINES = list(dict.fromkeys(command_lines()))


@pytest.mark.parametrize(("page", "line"), [each for each in LINES if each[1].startswith("ragen ")])
def test_a_command_line_is_one_that_the_command_reads(page, line):
    _, *words = shlex.split(re.split(r" [|>&]|; ", line)[0], comments=True)
    if words[0].startswith("-") or words[0] == "help":
        return
    assert words[0] in COMMANDS, f"{page}: {line}"
    command = COMMANDS[words[0]]
    parser = command.parser()
    if any(action.dest == "overrides" for action in parser._actions):
        parser.add_argument("--cfg", action="store_true")
    given = parser.parse_intermixed_args(words[1:])
    name = getattr(given, "config_name", None)
    if (
        words[0] in COMPOSED
        and not given.config_path
        and not name.startswith(".")
        and not getattr(given, "multirun", 0)
    ):
        overrides = [each for each in given.overrides if "=" in each and "..." not in each]
        load_config(name, overrides)


def test_scripts_that_are_called_are_there():
    for page, line in [each for each in LINES if each[1].startswith("python ")]:
        target = line.split()[1]
        if target == "-m":
            module = line.split()[2]
            found = ROOT / module.replace(".", "/")
            assert not module.startswith("ragen") or found.with_suffix(".py").is_file() or found.is_dir(), line
        elif target.endswith(".py") and target.split("/")[0] in ("examples", "benchmarks", "tests", "docs"):
            assert (ROOT / target).is_file(), f"{page}: {line}"
