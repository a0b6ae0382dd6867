"""Under verl itself, with Ray: its agent loop manager and workers, and its stock trainer on a CPU. Slow: minutes."""

import os
import signal
import subprocess
import sys
import threading
from contextlib import suppress

import numpy as np
import pytest
import ray
import torch
from omegaconf import OmegaConf

from ragen.agent_loop import training
from ragen.agent_loop.ray_service import node_actor
from ragen.config.loading import load_config
from support.agent_loop import StandInClient, tokenizer
from support.leftovers import processes, until
from support.taught_qwen import save_tiny_model
from support.verl_on_cpu import ENVIRONMENT, GROUPS, ON_CPU, OWN_RAY, TRAINING, values

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1500)]  # of what takes 3 minutes on a quiet machine

ROWS = [("SimpleSokoban", 1), ("SimpleSokoban", 1), ("FrozenLake", 3), ("Bandit", 5), ("FrozenLake", 4), ("Bandit", 6)]


def composed(folder, *overrides):
    model = save_tiny_model(folder / "model")
    given = [f"output_dir={folder}", f"model_path={model}", *GROUPS, *overrides]
    return training.trainer_config(load_config("_2_sokoban", training.allow_verl_keys(given)))


@pytest.fixture(scope="module")
def cluster():
    os.environ["RAY_AUTH_MODE"] = "disabled"
    ray.init("local", num_cpus=8, include_dashboard=False, runtime_env={"env_vars": ENVIRONMENT}, log_to_driver=False)
    yield
    ray.shutdown()


def batch(rows):
    from verl import DataProto

    def objects(values):
        array = np.empty(len(values), dtype=object)
        array[:] = values
        return array

    infos = [{"index": i, "tag": tag, "seed": seed, "mode": "train"} for i, (tag, seed) in enumerate(rows)]
    prompts = [[{"role": "user", "content": "unused"}] for _ in rows]
    objects_of = {"raw_prompt": prompts, "extra_info": infos, "data_source": [tag for tag, _ in rows]}
    data = DataProto.from_dict(
        tensors={"dummy_tensor": torch.zeros(len(rows), 1, dtype=torch.uint8)},
        non_tensors={name: objects(values) for name, values in objects_of.items()},
    )
    data.non_tensor_batch["index"] = np.arange(len(rows))
    return data


def generate(config, delay=0.0):
    from verl.experimental.agent_loop import AgentLoopManager

    client = StandInClient(tokenizer())
    client.delay = delay
    manager = AgentLoopManager.create(config=config, llm_client=client)
    return manager.generate_sequences(batch(ROWS))


def assert_same(first, second):
    for name in ("prompts", "responses", "response_mask", "rm_scores", "rollout_log_probs"):
        assert torch.equal(first.batch[name], second.batch[name]), name
    for name in ("success", "num_actions", "env_reward", "format_penalty"):
        assert first.non_tensor_batch[name].tolist() == second.non_tensor_batch[name].tolist()
    assert [list(scores) for scores in first.non_tensor_batch["turn_scores"]] == [
        list(scores) for scores in second.non_tensor_batch["turn_scores"]
    ]


def test_verls_manager_plays_trajectories_and_kills_of_the_service_change_nothing(cluster, tmp_path):
    config = composed(tmp_path, "actor_rollout_ref.rollout.agent.num_workers=2", "agent_loop.prompt_length=600")
    section = OmegaConf.to_container(config.ragen, resolve=True)
    undisturbed = generate(config)
    assert undisturbed.batch["prompts"].shape == (6, 600)
    assert undisturbed.batch["responses"].shape == (6, 3000)
    assert (undisturbed.batch["response_mask"].sum(1) > 0).all()
    assert undisturbed.non_tensor_batch["num_actions"].max() > 0
    scores = [sum(turns) for turns in undisturbed.non_tensor_batch["turn_scores"]]
    assert torch.allclose(undisturbed.batch["rm_scores"].sum(1), torch.tensor(scores, dtype=torch.float32))

    stop = threading.Event()
    killed = []

    def kill():
        """Kill the service now and then."""
        while len(killed) < 2 and not stop.wait(1.0):
            ray.kill(node_actor(section))  # the one that the loops have found by name
            killed.append(1)

    killer = threading.Thread(target=kill)
    killer.start()
    try:
        disturbed = generate(config, delay=0.4)
    finally:
        stop.set()
        killer.join()
    assert killed
    assert_same(disturbed, undisturbed)


def trained(tmp_path, command, disturb=lambda: None, steps=2):
    """Run a training; what it wrote, after a look at what every training has to log.

    Args:
        tmp_path: The training's folder.
        command: What starts it.
        disturb: Called again and again while it runs.
        steps: Number of its steps.
    """
    environment = {**os.environ, **ENVIRONMENT, **ON_CPU}
    path = tmp_path / "log"
    with path.open("w") as file:
        running = subprocess.Popen(command, env=environment, cwd=tmp_path, stdout=file, stderr=subprocess.STDOUT)
        until(lambda: disturb() or running.poll() is not None, patience=1200)
    if running.poll() is None:
        running.kill()
    log = path.read_text(errors="replace")
    assert running.returncode == 0, log[-5000:]
    assert values(log, "training/global_step") == [*range(1, steps + 1)]
    assert any(norm > 0 for norm in values(log, "actor/grad_norm"))
    return log


def stock_command(tmp_path, *overrides):
    """verl's own command, on the configuration that is written for it."""
    path = training.prepare(composed(tmp_path, *overrides))
    folders = ["--config-path", str(path.parent), "--config-name", path.stem, f"hydra.run.dir={tmp_path}/hydra"]
    return [sys.executable, "-m", "verl.trainer.main_ppo", *folders]


@pytest.mark.parametrize("how", ["start", "a row a turn"])
def test_verls_stock_trainer_takes_steps_on_a_cpu(tmp_path, how):
    overrides = [*TRAINING, *OWN_RAY]
    if how == "a row a turn":
        overrides += ["++agent_proxy.context_window_mode=single_turn"]
    command = stock_command(tmp_path, *overrides)
    if how == "start":
        given = ["output_dir=" + str(tmp_path), "model_path=" + str(tmp_path / "model"), *GROUPS, *overrides]
        script = (
            "from ragen.agent_loop import training; from ragen.config.loading import load_config; "
            f"training.train(load_config('_2_sokoban', training.allow_verl_keys({given!r})))"
        )
        command = [sys.executable, "-c", script]
    log = trained(tmp_path, command)
    assert min(values(log, "training/rollout_actor_probs_pearson_corr")) > 0.99
    assert max(values(log, "training/rollout_probs_diff_max")) < 0.05
    assert max(values(log, "critic/score/max")) > min(values(log, "critic/score/min"))
    for tag in ("SimpleSokoban", "Bandit"):
        assert len(values(log, f"val-aux/{tag}/success/mean@1")) == 1
        assert len(values(log, f"val-aux/{tag}/num_actions/mean@1")) == 1


class WorkerKiller:
    """Kills a worker of the environment service whenever it has a new one, as long as there are kills left."""

    def __init__(self, kills):
        self.killed, self._left = [], kills

    def __call__(self):
        for pid, title in processes().items():
            if self._left and pid not in self.killed and title.startswith("envlanes worker"):
                with suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
                    self.killed.append(pid)
                    self._left -= 1


def test_kills_of_workers_change_no_reward_of_a_training(tmp_path):
    killer, logs = WorkerKiller(12), []
    for name, disturb in (("calm", lambda: None), ("disturbed", killer)):
        folder = tmp_path / name
        folder.mkdir()
        overrides = [*TRAINING, *OWN_RAY, "agent_loop.seed=7", "trainer.total_training_steps=1"]
        logs.append(trained(folder, stock_command(folder, *overrides), disturb, steps=1))
    assert killer.killed
    for metric in ("critic/score/mean", "critic/score/max", "critic/score/min", "response_length/mean"):
        calm, disturbed = (values(log, metric) for log in logs)
        assert calm == pytest.approx(disturbed) and len(calm) == 1, metric


def test_groups_that_failed_are_not_learned_from(tmp_path):
    evil = "{env_type: 'support.faulty_envs:Faulty', env_config: {fault: raises, place: reset}, "
    evil += "max_actions_per_traj: 9, env_instruction: go, max_tokens: 20}"
    tags = [
        f"es_manager.{mode}.env_configs.{said}"
        for mode in ("train", "val")
        for said in ("tags=[Bandit,Evil]", "n_groups=[3,1]")
    ]
    log = trained(tmp_path, stock_command(tmp_path, *TRAINING, *OWN_RAY, f"+custom_envs.Evil={evil}", *tags))
    assert "left out, its environment failed" in log
    assert not values(log, "val-aux/Evil/success/mean@1") and len(values(log, "val-aux/Bandit/success/mean@1")) == 1
