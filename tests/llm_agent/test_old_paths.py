"""Paths of the last release: modules that moved are found where they were, and a warning says where they are."""

import importlib
import operator
import subprocess
import sys
from importlib.util import find_spec

import pytest

from ragen.llm_agent._moved import MOVED
from ragen.llm_agent.evaluation import results
from ragen.llm_agent.rollout import player

OLD = [f"ragen.llm_agent.{name}" for name in MOVED]


def run(*arguments: str) -> subprocess.CompletedProcess:
    return subprocess.run([sys.executable, *arguments], capture_output=True, text=True, timeout=60, check=False)


@pytest.mark.parametrize("old", OLD)
def test_an_old_path_gives_the_module_of_the_new_path(old, monkeypatch):
    new = f"ragen.llm_agent.{MOVED[old.rpartition('.')[2]]}"
    monkeypatch.delitem(sys.modules, old, raising=False)
    with pytest.warns(DeprecationWarning, match=rf"^{old} has moved to {new}\.$") as warned:
        module = importlib.import_module(old)
    assert module is importlib.import_module(new) is sys.modules[old]
    assert module.__name__ == module.__spec__.name == new
    assert len(warned) == 1


def test_every_form_of_import_finds_an_old_path_and_the_warning_names_the_line_that_imports(tmp_path):
    script = tmp_path / "old.py"
    script.write_text(
        "import sys\n"
        "from ragen.llm_agent.configuration import load_config\n"
        "from ragen.llm_agent import context_settings\n"
        "import ragen.llm_agent.configuration as again\n"
        "from ragen.llm_agent.config import context, loading\n"
        "assert again is loading and context_settings is context and load_config is loading.load_config\n"
        "print(sorted({'torch', 'verl', 'hydra', 'transformers', 'ray', 'omegaconf'} & set(sys.modules)))\n"
    )
    ran = run(str(script))
    assert ran.stdout == "[]\n", ran.stderr
    assert f"{script}:2: DeprecationWarning: ragen.llm_agent.configuration has moved to" in ran.stderr
    assert f"{script}:3: DeprecationWarning: ragen.llm_agent.context_settings has moved to" in ran.stderr
    assert ran.stderr.count("DeprecationWarning") == 2


def test_a_command_of_an_old_path_runs_and_says_its_new_one():
    ran = run("-m", "ragen.llm_agent.compare", "--help")
    assert ran.returncode == 0
    assert ran.stdout.startswith("usage: python -m ragen.llm_agent.evaluation.compare")
    said = "python -m ragen.llm_agent.compare is python -m ragen.llm_agent.evaluation.compare now."
    assert f"DeprecationWarning: {said}" in ran.stderr


@pytest.mark.parametrize(
    ("old", "name", "new"),
    [
        *(("ragen.llm_agent.agent_proxy", name, player) for name in ("read_max_turn", "name_requests", "MODES")),
        *(("ragen.llm_agent.evaluation", name, results) for name in ("evaluate", "usage_line", "ALL")),
    ],
)
def test_a_name_that_moved_out_of_a_module_that_stays_is_found(old, name, new):
    with pytest.warns(DeprecationWarning, match=rf"^{old}\.{name} has moved to {new.__name__}\.{name}\.$"):
        found = getattr(importlib.import_module(old), name)
    assert found is getattr(new, name)


def test_what_never_was_is_not_found():
    with pytest.raises(ModuleNotFoundError, match=r"ragen\.llm_agent\.configurations"):
        importlib.import_module("ragen.llm_agent.configurations")
    assert find_spec("ragen.llm_agent.config.configuration") is None
    with pytest.raises(AttributeError, match=r"'ragen\.llm_agent\.evaluation' has no attribute 'evaluates'"):
        operator.attrgetter("evaluates")(importlib.import_module("ragen.llm_agent.evaluation"))
