"""A training run: what it computes and writes, and the keys it takes."""

import json

import numpy as np
import pytest

from ragen.errors import ConfigError
from ragen.meta import make_env
from ragen.meta.command import main
from ragen.meta.settings import PPOSettings, load_settings
from support.later import meta, torch

SMALL = [
    *("iterations=4", "rollouts=6", "forward_batch=4", "eval_every=2", "eval_tasks=8"),
    *("engine.num_envs=3", "agent.hidden=8", "env.arguments.max_episode_steps=6", "seed=3"),
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


def trained(folder, *overrides, name="bandit"):
    agent, history = meta.train(load_settings(name, [*SMALL, f"output_dir={folder}", *overrides]))
    weights = {key: value.tolist() for key, value in agent.state_dict().items()}
    return weights, [{key: value for key, value in each.items() if key != "steps_per_s"} for each in history]


def test_an_update_makes_what_paid_likelier():
    env = make_env("ragen/Bandit-v0", 1, seed=0, max_episode_steps=10, arms=2)
    agent = meta.MemoryAgent.of(env, hidden=8)
    learner = meta.Learner(agent, env, seed=1)
    optimizer = torch.optim.Adam(agent.parameters())

    def share(rollouts):
        return np.mean([action[0] for each in rollouts for _, action, *_ in each.steps])

    tasks = [(0.0, 1.0)] * 8
    before = share(learner.evaluate(tasks, 0))
    assert meta.score("Bandit", learner.evaluate(tasks, 0), 1) == pytest.approx(10 * (1 - before))
    for turn in range(7):
        arrays = [meta.arrays_of(each.steps) for each in learner.evaluate(tasks, turn)]
        meta.update(agent, optimizer, arrays, PPOSettings(lr=1e-2, lam=0.0), 0.0, turn)
    assert share(learner.evaluate(tasks, 0)) > before + 0.2


@pytest.mark.parametrize("name", CURVES)
def test_a_seed_reproduces_a_run_whatever_plays(tmp_path, name):
    one = trained(tmp_path / "one", "engine.use_lanes=false", name=name)
    curve = [[each[column] for each in one[1]] for column in ("train", "policy_loss")]
    assert np.allclose(curve, CURVES[name], atol=1e-5)
    workers = ("engine.use_lanes=true", "engine.num_envs=5", "engine.max_workers=2")
    assert trained(tmp_path / "other", *workers, name=name) == one
    assert main(["--config-name", name, *SMALL, "seed=4", f"output_dir={tmp_path / 'third'}"]) == 0
    other = torch.load(tmp_path / "third" / "agent.pt", weights_only=True)
    assert {key: value.tolist() for key, value in other.items()} != one[0]
    lines = [json.loads(line) for line in (tmp_path / "one" / "metrics.jsonl").read_text().splitlines()]
    assert [(each["iteration"], "eval" in each) for each in lines] == [(1, False), (2, True), (3, False), (4, True)]
    assert (tmp_path / "one" / "agent.pt").is_file()


def test_the_keys_of_pomdp_baselines_train(tmp_path):
    path = tmp_path / "ant.yaml"
    path.write_text(YAML)
    read = load_settings(str(path), ["iterations=1", "agent.hidden=8", f"output_dir={tmp_path / 'run'}"])
    assert (read.env.id, read.env.episodes_per_task, read.env.n_tasks) == ("AntDir-v0", 2, 50)
    assert (read.eval_tasks, read.engine.num_envs, read.rollouts) == (20, 6, 12)
    assert meta.train(read)[1][-1]["failed"] == 0
    for override in ("env.id=ragen/AntDir-v0", "env.env_nmae=x"):
        with pytest.raises(ConfigError, match=override.partition("=")[0]):
            load_settings(str(path), [override])


@pytest.mark.parametrize(
    ("override", "named"),
    [
        *(("ppo.epoch=2", "ppo.epoch"), ("iterations=many", "iterations"), ("rollouts=0", "rollouts")),
        *(("ppo=3", "ppo"), ("iterations", "key=value"), ("engine.backend=threads", "backend")),
        *(("env.id=Nothing-v0", "Nothing"), ("--config-name=nothing", "nothing")),
    ],
)
def test_a_setting_that_cannot_work_is_named(tmp_path, override, named, capsys):
    assert main([f"output_dir={tmp_path}", override]) == 2
    assert named in capsys.readouterr().err
