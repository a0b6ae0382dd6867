"""The example: an agent that is trained on collected rollouts."""

import json
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path

import numpy as np
import pytest

from ragen.errors import ConfigError

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"
SMALL = [
    *("train.num_iters=4", "train.num_rollouts_per_iter=6", "forward_batch=4", "eval_every=2", "env.num_eval_tasks=8"),
    *("env.num_parallel_workers=3", "agent.hidden=8", "env_arguments.max_episode_steps=6", "seed=3"),
]
CURVES = {  # returns and losses of four iterations, by the first version
    "bandit": ([2.93201, 2.50396, 2.53233, 2.17257], [0.02225434, -0.00266997, 0.03037929, 0.09477163]),
    "point_robot": ([0.0] * 4, [-0.01261514, 0.00584572, -0.01034923, 0.03705558]),
}
YAML = """
env:
  env_type: meta
  env_name: AntDir-v0
  max_rollouts_per_task: 2
  num_train_tasks: 50
  num_eval_tasks: 20
  num_parallel_workers: 6  # NEW: Number of parallel environment workers

train:
  num_rollouts_per_iter: 12  # Will be distributed across 6 workers (2 each)
"""


@pytest.fixture(scope="module")
def rl2():
    spec = spec_from_file_location("rl2", EXAMPLES / "rl2.py")
    module = module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def trained(rl2, folder, name, *overrides):
    config = rl2.read(str(EXAMPLES / "rl2" / f"{name}.yaml"), [f"output_dir={folder}", *overrides])
    agent, history = rl2.train(config, lambda metrics: None)
    weights = {key: value.tolist() for key, value in agent.state_dict().items()}
    return weights, [{key: value for key, value in each.items() if key != "steps_per_s"} for each in history]


@pytest.mark.parametrize("name", CURVES)
def test_a_seed_reproduces_a_run_whatever_plays(rl2, tmp_path, name):
    one = trained(rl2, tmp_path / "one", name, *SMALL, "engine.use_lanes=false")
    curve = [[each[column] for each in one[1]] for column in ("train", "policy_loss")]
    assert np.allclose(curve, CURVES[name], atol=1e-5)
    workers = ("engine.use_lanes=true", "env.num_parallel_workers=5", "engine.max_workers=2")
    assert trained(rl2, tmp_path / "other", name, *SMALL, *workers) == one
    lines = [json.loads(line) for line in (tmp_path / "one" / "metrics.jsonl").read_text().splitlines()]
    assert [(each["iteration"], "eval" in each) for each in lines] == [(1, False), (2, True), (3, False), (4, True)]
    assert (tmp_path / "one" / "agent.pt").is_file()


def test_the_keys_of_pomdp_baselines_train(rl2, tmp_path):
    path = tmp_path / "ant.yaml"
    path.write_text(YAML)
    config = rl2.read(str(path), ["train.num_iters=1", "agent.hidden=8", f"output_dir={tmp_path / 'run'}"])
    assert rl2.train(config, print)[1][-1]["failed"] == 0
    with pytest.raises(ConfigError, match="env_nmae"):
        rl2.read(str(path), ["env.env_nmae=x"])


@pytest.mark.slow
@pytest.mark.timeout(3600)
@pytest.mark.parametrize(("name", "is_learnt"), [("bandit", lambda v: v < 17), ("point_robot", lambda v: v > 43)])
def test_a_configuration_is_learnt(rl2, tmp_path, name, is_learnt):
    assert is_learnt(trained(rl2, tmp_path, name)[1][-1]["eval"])
