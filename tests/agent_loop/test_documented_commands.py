"""The training commands of ``docs/training_with_verl.md``, read off the page, compose to what they say."""

import re
import shlex
from pathlib import Path

import pytest

from ragen.agent_loop import training
from ragen.config.loading import load_config

PAGE = Path(__file__).resolve().parents[2] / "docs" / "training_with_verl.md"
BLOCKS = re.findall(r"```bash\n(.*?)```", PAGE.read_text("utf-8").replace("\\\n", " "), re.DOTALL)
COMMANDS = [line.partition("--config-name ")[2] for line in "".join(BLOCKS).splitlines() if "train.py" in line]


@pytest.mark.parametrize("command", COMMANDS)
def test_a_training_command_composes_to_what_it_says(command, tmp_path):
    name, *overrides = shlex.split(command)
    given = [*training.allow_verl_keys(overrides), f"output_dir={tmp_path}"]
    made = training.trainer_config(load_config(name, given))
    for key, value in (override.split("=") for override in overrides if override.startswith("trainer.n")):
        assert str(made.trainer[key.removeprefix("trainer.")]) == value
    assert training.prepare(made).is_file()
