"""The commands of ``docs/training_with_verl.md``, read off the page: all compose, and two run on a CPU."""

import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from ragen.agent_loop import training
from ragen.config.loading import load_config
from support.taught_qwen import save_tiny_model
from support.verl_on_cpu import CRITIC, ENVIRONMENT, GROUPS, MERGED, ON_CPU, OWN_RAY, TRAINING, values

ROOT = Path(__file__).resolve().parents[2]
PAGE = ROOT / "docs" / "training_with_verl.md"
_, ON_ONE_NODE, PPO, WITH_LORA, _, _, ON_A_CLUSTER, _ = range(8)


def documented():
    """The commands of the page, in its order, as words without comments."""
    text = PAGE.read_text("utf-8")
    found = re.findall(r"```bash\n(.*?)```|`(python -m [^`]+)`", text, re.DOTALL)
    commands = []
    for block, inline in found:
        lines = (block or inline).replace("\\\n", " ").splitlines()
        commands += [words for line in lines if (words := shlex.split(line.split("  #")[0]))]
    return commands


COMMANDS = documented()


def overrides_of(words):
    """What a documented ``train.py`` is given behind its configuration's name."""
    assert words[words.index("train.py") - 1] == "python"
    name, *overrides = words[words.index("--config-name") + 1 :]
    return name, overrides


@pytest.mark.parametrize("place", [ON_ONE_NODE, PPO, WITH_LORA, ON_A_CLUSTER])
def test_the_training_commands_compose_to_what_they_say(place, tmp_path):
    name, overrides = overrides_of(COMMANDS[place])
    allowed = training.allow_verl_keys(overrides, ["agent_loop"])
    config = load_config(name, [*allowed, f"output_dir={tmp_path}"])
    made = training.trainer_config(config)
    for key, value in (override.split("=") for override in overrides if override.startswith("trainer.n")):
        assert str(made.trainer[key.removeprefix("trainer.")]) == value
    assert training.prepare(made).is_file()


def run(words, tmp_path, **environment):
    """Run a command, with this interpreter for ``python``; what it wrote."""
    words = [sys.executable if word == "python" else word for word in words]
    words = [str(ROOT / word) if word == "train.py" else word for word in words]
    done = subprocess.run(
        words,
        env={**os.environ, **ENVIRONMENT, **environment},
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=1200,
    )
    assert done.returncode == 0, (done.stdout + done.stderr)[-4000:]
    return done.stdout + done.stderr


def small(tmp_path, nodes=()):
    """Overrides that make a documented training one of two steps of a tiny model."""
    model = save_tiny_model(tmp_path / "model")
    sizes = ["trainer.n_gpus_per_node=1", "trainer.nnodes=1", *nodes]
    return [f"output_dir={tmp_path}", f"model_path={model}", *GROUPS, *TRAINING, *sizes]


def assert_trained(log):
    assert values(log, "training/global_step") == [1, 2]


QUICK = ["trainer.val_before_train=false"]


@pytest.mark.slow
@pytest.mark.timeout(1500)
def test_ppo_learns_a_critic(tmp_path):
    log = run([*COMMANDS[PPO], *small(tmp_path), *CRITIC, *QUICK, *OWN_RAY], tmp_path, **ON_CPU)
    assert_trained(log)
    assert len(values(log, "critic/vf_loss")) == 2 and all(norm > 0 for norm in values(log, "critic/grad_norm"))
    assert len(values(log, "actor/reward_kl_penalty")) == 2


@pytest.mark.slow
@pytest.mark.timeout(1500)
def test_lora_and_a_kl_loss_take_steps(tmp_path):
    log = run([*COMMANDS[WITH_LORA], *small(tmp_path), *MERGED, *QUICK, *OWN_RAY], tmp_path, **ON_CPU)
    assert_trained(log)
    first, second = values(log, "actor/kl_loss")
    assert first == pytest.approx(0.0, abs=1e-6) and second > 0
