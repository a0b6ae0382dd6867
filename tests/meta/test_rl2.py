"""A run: what it computes, what it writes, and that a stopped one goes on as if it had not been."""

import json
import re

import numpy as np
import pytest

from ragen.errors import CheckpointError, ConfigError
from ragen.meta import make_env
from ragen.meta.command import main
from ragen.meta.rl2.settings import PPOSettings, config_names, load_settings
from support.later import meta, torch

SMALL = [
    *("iterations=4", "rollouts=6", "forward_batch=4", "eval_every=2", "eval_tasks=8", "save_every=2"),
    *("engine.num_envs=3", "agent.hidden=8", "env.arguments.max_episode_steps=6", "seed=3"),
]


@pytest.fixture(autouse=True)
def no_pictures(request, monkeypatch):
    """They take longer than everything else."""
    if request.function is not test_a_run_writes_what_it_says:
        monkeypatch.setattr("ragen.meta.rl2.trainer.draw_curve", lambda path, *_: path)


def trained(folder, *overrides, name="bandit", stops=lambda: False):
    with meta.Trainer(load_settings(name, [*SMALL, f"output_dir={folder}", *overrides])) as trainer:
        trainer.run(stops=stops)
        return trainer


def weights(trainer):
    return {name: value.tolist() for name, value in trainer.agent.state_dict().items()}


def without_times(history):
    return [{key: value for key, value in each.items() if not key.endswith("_s")} for each in history]


def test_advantages_are_those_of_the_definition():
    rng = np.random.default_rng(0)
    rewards, values = (torch.from_numpy(rng.normal(size=(5, 2)).astype(np.float32)) for _ in range(2))
    mask = torch.ones(5, 2)
    mask[3:, 1] = 0
    values = values * mask
    found = meta.gae(rewards, values, mask, 0.9, 0.8)
    for column, steps in ((0, 5), (1, 3)):
        v = [*values[:steps, column].tolist(), 0.0]
        deltas = [rewards[t, column].item() + 0.9 * v[t + 1] - v[t] for t in range(steps)]
        for t in range(steps):
            expected = sum((0.9 * 0.8) ** (j - t) * deltas[j] for j in range(t, steps))
            assert found[t, column].item() == pytest.approx(expected, abs=1e-5)
    assert not found[3:, 1].any()


@pytest.mark.parametrize("name", ["ragen/Bandit-v0", "ragen/PointRobot-v0"])
def test_the_update_sees_what_the_agent_saw(name):
    env = make_env(name, 1, seed=0, max_episode_steps=5)
    agent = meta.MemoryAgent.of(env, hidden=8)
    torch.nn.init.normal_(agent.policy.mean.weight)
    learner = meta.Learner(agent, env, seed=1, forward_batch=2)
    learner.collect_rollouts(3)
    batch = meta.Batch.of(learner.policy_storage.episodes, agent)
    (action, reward, state), column = agent.get_initial_info(), 1
    for step in range(5):
        seen = torch.from_numpy(learner.last_rollouts[column].observations[step])
        expected = torch.cat((action[0].detach(), reward[0], seen))
        assert torch.allclose(batch.inputs[step, column], expected, atol=1e-5)
        noise = torch.from_numpy(learner.last_rollouts[column].noise[step : step + 1])
        obs = batch.inputs[step, column, agent.action_dim + 1 :][None]
        (action, *_), state = agent.act(state, action, reward, obs, noise=noise)
        assert torch.allclose(action[0], batch.actions[step, column], atol=1e-5)
        reward = batch.rewards[step, column].reshape(1, 1)


def test_an_update_makes_what_paid_likelier():
    env = make_env("ragen/Bandit-v0", 1, seed=0, max_episode_steps=10, arms=2)
    agent = meta.MemoryAgent.of(env, hidden=8)
    learner = meta.Learner(agent, env, seed=1)
    ppo = meta.PPO(agent, PPOSettings(lr=1e-2, reward_scale=1.0, lam=0.0))

    def share(rollouts):
        return np.mean([action[0] for each in rollouts for action in each.actions])

    tasks = [(0.0, 1.0)] * 8
    before = share(learner.evaluate(tasks, 0))
    for turn in range(7):
        ppo.update([each.arrays() for each in learner.evaluate(tasks, turn)], 0.0, turn)
    assert share(learner.evaluate(tasks, 0)) > before + 0.2


def test_the_bars_are_players_of_the_same_games():
    env = make_env("ragen/Bandit-v0", 1, seed=0, n_tasks=16)
    learner = meta.Learner(meta.MemoryAgent.of(env, hidden=8), env)
    tasks = env.tasks.tasks
    lost = {
        name: meta.regret(learner.evaluate(tasks, 0, actor=actor))
        for name, actor in {"thompson": meta.Thompson(10, 0), "ucb": meta.UCB(10)}.items()
    }
    assert 10 < lost["thompson"] < 17 < lost["ucb"] < meta.regret(learner.evaluate(tasks, 0)) < 50
    robot = make_env("ragen/SparsePointRobot-v0", 2, seed=0, n_tasks=8, start="observe")
    learner = meta.Learner(meta.MemoryAgent.of(robot, hidden=8), robot)
    oracle = learner.evaluate(robot.tasks.tasks, 0, actor=meta.Straight(0.1))
    assert all(51 <= each <= 54 for each in meta.episode_returns(oracle, 2))


def test_a_run_writes_what_it_says(tmp_path):
    trainer = trained(tmp_path)
    lines = [json.loads(line) for line in (tmp_path / "metrics.jsonl").read_text().splitlines()]
    assert [each["iteration"] for each in lines] == [1, 2, 3, 4]
    assert ["eval" in each for each in lines] == [False, True, False, True]
    assert lines[-1]["env_steps"] == 4 * 6 * 6
    assert json.loads((tmp_path / "bars.json").read_text()).keys() == {"measure", "thompson", "ucb"}
    assert (tmp_path / "learning_curve.png").read_bytes().startswith(b"\x89PNG")
    assert len(list((tmp_path / "checkpoints").iterdir())) == 2
    assert trainer.iteration == 4


def test_a_run_is_written_to_tensorboard_as_well(tmp_path):
    trained(tmp_path / "run", "logger=[tensorboard]")
    assert list((tmp_path / "run" / "tensorboard").iterdir())
    with pytest.raises(ConfigError, match="'paper'; expected some of"):
        load_settings("bandit", ["logger=[paper]"])


def test_a_seed_reproduces_a_run_whatever_plays(tmp_path):
    one = trained(tmp_path / "one", "engine.use_lanes=false")
    other = trained(tmp_path / "other", "engine.use_lanes=true", "engine.num_envs=5", "engine.max_workers=2")
    third = trained(tmp_path / "third", "seed=4")
    assert weights(one) == weights(other) != weights(third)
    assert without_times([{**each, "steps_per_s": 0} for each in one.history]) == without_times(
        [{**each, "steps_per_s": 0} for each in other.history]
    )


@pytest.mark.parametrize("name", ["bandit", "point_robot"])
def test_a_run_that_was_stopped_goes_on_as_if_it_had_not_been(tmp_path, name):
    asked = iter([False, False, True])
    stopped = trained(tmp_path / "stopped", name=name, stops=lambda: next(asked))
    assert stopped.iteration == 3
    resumed, whole = trained(tmp_path / "stopped", name=name), trained(tmp_path / "whole", name=name)
    assert weights(resumed) == weights(whole)
    assert [each["train"] for each in resumed.history] == [each["train"] for each in whole.history]
    assert resumed.bars == whole.bars


def test_a_run_goes_on_only_as_it_was_begun(tmp_path):
    threads, short = torch.get_num_threads(), ("iterations=2", "save_every=1")
    trained(tmp_path, *short, f"threads={threads + 1}")
    assert torch.get_num_threads() == threads
    with pytest.raises(CheckpointError, match=r"ppo = .*another output_dir"):
        trained(tmp_path, *short, "ppo.lr=1e-4", f"threads={threads + 1}")
    assert torch.get_num_threads() == threads
    next((tmp_path / "checkpoints").glob("*2.pt")).write_bytes(b"no checkpoint")
    with pytest.raises(CheckpointError, match=r"iteration_000002\.pt"):
        trained(tmp_path, *short)


@pytest.mark.parametrize(
    ("override", "said"),
    [
        ("ppo.epoch=2", "'ppo.epoch'. Did you mean 'ppo.epochs'"),
        ("iterations=many", "'iterations' is 'many'; expected a whole number"),
        ("rollouts=0", "'rollouts' is 0"),
        ("ppo.minibatches=129", "ppo.minibatches = 129"),
        ("ppo=3", "'ppo' is 3; expected a section"),
        ("iterations", "expected key=value"),
        ("engine.backend=threads", "backend = 'threads'"),
        ("env.id=Nothing-v0", "Nothing"),
    ],
)
def test_a_setting_that_cannot_work_is_named(tmp_path, override, said, capsys):
    assert main(["--config-name", "bandit", f"output_dir={tmp_path}", override]) == 2
    assert said in capsys.readouterr().err


def test_configurations_are_found_by_name(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert {"bandit", "point_robot"} <= set(config_names())
    for name in config_names():
        assert re.fullmatch(rf"outputs/meta/{name}/\d{{4}}-\d\d-\d\d/\d\d-\d\d-\d\d", load_settings(name).output_dir)
    with pytest.raises(ConfigError, match="no configuration 'nothing'"):
        load_settings("nothing")


def test_the_command_shows_what_was_reached(tmp_path, capsys):
    assert main(["--config-name", "bandit", *SMALL, f"output_dir={tmp_path}"]) == 0
    said = capsys.readouterr().out
    assert re.search(r"iteration +2: regret \d+\.\d+ \(thompson \d+\.\d+, ucb \d+\.\d+\)", said)
    assert f"written to {tmp_path}" in said
    assert said.splitlines()[-1].startswith("environments: ")
