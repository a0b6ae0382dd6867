"""What an import says that misses a package of an extra, and that only such imports say it."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

from ragen.cli.main import main
from ragen.errors import MissingExtraError, install_command
from ragen.extras import EXTRAS, Extra, needs

ROOT = Path(__file__).resolve().parents[1]
WITHOUT = """
import sys

class Without:
    def find_spec(self, name, path=None, target=None):
        if name.partition('.')[0] in {packages!r}:
            raise ModuleNotFoundError(f'No module named {{name!r}}', name=name)

sys.meta_path.insert(0, Without())
"""


def test_an_environment_without_its_packages_is_refused_before_anything_is_written(tmp_path, capsys, monkeypatch):
    monkeypatch.setitem(EXTRAS, "textworld", Extra("play games of TextWorld", ("no_such_textworld",)))
    assert main(["rollout", "--config-name", "_14_textworld", f"output_dir={tmp_path / 'out'}"]) == 2
    told = (
        f"the environment 'textworld' needs no_such_textworld, which is not installed: {install_command('textworld')}"
    )
    assert capsys.readouterr().err == f"error: {told}.\n" and not (tmp_path / "out").exists()
    assert main(["list", "environments"]) == 0
    assert re.search(r"^  textworld +not installed ", capsys.readouterr().out, re.MULTILINE)


def test_a_module_that_no_extra_brings_is_missed_as_ever():
    with pytest.raises(ModuleNotFoundError, match="my_game") as refused, needs("hf", "a model"):
        raise ModuleNotFoundError("No module named 'my_game'", name="my_game")
    assert not isinstance(refused.value, MissingExtraError)


@pytest.mark.parametrize(
    ("statement", "extra"),
    [
        ("import ragen.training.trainer", "train"),
        ("from ragen.meta import Learner", "meta"),
        ("from ragen.meta import make_env; make_env('AntDir-v0', 2)", "meta"),
        ("from ragen.cage2 import ParallelWorkflowRLTrainer", "cage2"),
        ("import ragen.agent_loop.loop", "verl"),
        ("import ragen.llm_agent.backends.hf", "hf"),
        ("from ragen.llm_agent.tokenizer import load_tokenizer; load_tokenizer()", "hf"),
        ("from ragen.llm_agent.batches.dataproto import data_proto; data_proto({'a': [1]}, {}, {})", "verl"),
    ],
)
def test_what_needs_an_extra_names_it(statement, extra):
    packages = sorted({package for each in EXTRAS.values() for package in each.packages})
    code = WITHOUT.format(packages=packages) + statement
    ran = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=False)
    assert ran.returncode == 1
    assert install_command(extra) in ran.stderr.splitlines()[-1]
