"""RL^2 (Duan et al. 2016) on rollouts of ``ragen.meta``: an agent with memory learns how to learn a task.

    python examples/rl2.py examples/rl2/bandit.yaml [key=value ...]

The keys are those of ``DEFAULTS``, named as in pomdp-baselines where it has them. PPO treats a rollout as one episode:
its end is terminal, whatever ended it, since no step of the task follows. A seed determines everything.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from time import perf_counter
from typing import Any

import numpy as np
import torch
from omegaconf import OmegaConf
from omegaconf.errors import OmegaConfBaseException
from torch import Tensor, nn
from torch.nn.utils.rnn import pad_sequence

from ragen import ppo
from ragen.checkpoints import save
from ragen.commands import refusing
from ragen.errors import ConfigError, one_line
from ragen.meta import Learner, MemoryAgent, make_env, make_parallel_env
from ragen.torch_threads import torch_threads
from ragen.validity import check_share

DEFAULTS = {
    "env": {
        "env_type": "meta",
        "env_name": "ragen/Bandit-v0",
        "max_rollouts_per_task": 1,
        "num_train_tasks": None,  # a new one in each rollout
        "num_eval_tasks": 256,  # sampled independently of the training tasks
        "num_parallel_workers": 64,  # environments
        "start": "observe",
    },
    "env_arguments": {},
    "train": {"num_iters": 100, "num_rollouts_per_iter": 64},
    "engine": {"use_lanes": "auto", "max_workers": None, "backend": "process"},
    "agent": {"hidden": 128, "products": False},
    "ppo": {
        "lr": 1e-3,  # falls to 0 over the run, as entropy_coef does
        "gamma": 0.99,
        "lam": 0.95,
        "center_steps": False,  # whether each step's mean advantage is subtracted: time effects that values do not know
        "minibatches": 4,
        "entropy_coef": 0.01,
    },
    "seed": 0,
    "forward_batch": 64,
    "eval_every": 20,
    "output_dir": "outputs/rl2",
}
EVALUATION_SEED = 1_000_003  # added to the run's seed for the evaluation's tasks and rollouts
CLIP, EPOCHS, VALUE_COEF, GRAD_CLIP = 0.2, 4, 0.25, 0.5
REWARD_SCALE = 0.1  # values should be of the order of 1, since actor and critic share weights


class ActorCritic(MemoryAgent):
    """An agent with memory that also predicts returns."""

    def __init__(self, *arguments: Any, hidden: int, **options: Any) -> None:
        """Build it."""
        super().__init__(*arguments, hidden=hidden, **options)
        self.value = nn.Linear(hidden, 1)

    def evaluate(self, inputs: Tensor, actions: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Log-probabilities, entropies and values ``(steps, batch)`` of whole rollouts.

        Args:
            inputs: ``(steps, batch, A + 1 + d)``: previous action, previous reward, observation.
            actions: ``(steps, batch, A)``.
        """
        features, _ = self.features(inputs)
        chances = self.policy(features)
        return chances.log_prob(actions), chances.entropy(), self.value(features).squeeze(-1)


def read(path: str, overrides: Sequence[str] = ()) -> Any:
    """The configuration of a file, with defaults.

    Raises:
        ConfigError: There is no such file or key.
    """
    config = OmegaConf.create(DEFAULTS)
    OmegaConf.set_struct(config, True)
    OmegaConf.set_struct(config.env_arguments, False)
    try:
        return OmegaConf.merge(config, OmegaConf.load(path), OmegaConf.from_dotlist(list(overrides)))
    except (OSError, OmegaConfBaseException) as error:
        raise ConfigError(f"{path} {' '.join(overrides)}: {one_line(error)}") from error


def train(config: Any, report: Callable[[dict[str, float]], object]) -> tuple[ActorCritic, list[dict[str, float]]]:
    """Train an agent; writes ``metrics.jsonl`` and ``agent.pt``; returns it, and the metrics of all iterations.

    Raises:
        EnvsFailedError: More than half of the rollouts failed with their environments.
    """
    env, size, folder = config.env, config.train.num_rollouts_per_iter, Path(config.output_dir)
    name, episodes, seed = env.env_name, env.max_rollouts_per_task, config.seed
    made: dict[str, Any] = {"start": env.start, "n_tasks": env.num_train_tasks, **config.env_arguments}
    own, judged = make_env(name, episodes, seed, **made), seed + EVALUATION_SEED
    eval_tasks: Any = make_env(name, 1, judged, **{**made, "n_tasks": env.num_eval_tasks}).tasks
    torch.manual_seed(seed)
    agent = ActorCritic.of(own, **config.agent)
    learner = Learner(agent, own, seed=seed, forward_batch=config.forward_batch)
    optimizer, history = torch.optim.Adam(agent.parameters(), eps=1e-5), list[dict[str, float]]()
    folder.mkdir(parents=True, exist_ok=True)
    with (
        torch_threads(1),
        make_parallel_env(name, episodes, env.num_parallel_workers, seed, settings=dict(config.engine), **made) as envs,
        (folder / "metrics.jsonl").open("w", buffering=1) as file,
    ):
        for done in range(config.train.num_iters):
            begun, iteration = perf_counter(), done + 1
            learner.policy_storage.clear()
            steps = learner.collect_rollouts_parallel(size, parallel_env=envs)
            check_share([each.error for each in learner.last_rollouts])
            progress, played = done / config.train.num_iters, learner.policy_storage.episodes
            metrics = {
                "iteration": iteration,
                "env_steps": learner._n_env_steps_total,
                "train": score(name, learner.last_rollouts, episodes),
                **update(agent, optimizer, played, config.ppo, progress, (seed, done)),
                "failed": size - len(played),
                "steps_per_s": steps / (perf_counter() - begun),
            }
            if iteration % config.eval_every == 0 or iteration == config.train.num_iters:
                metrics["eval"] = score(name, learner.evaluate(eval_tasks, judged, envs), episodes)
                save(folder / "agent.pt", agent.state_dict())
            history.append(metrics)
            file.write(json.dumps(metrics) + "\n")
            report(metrics)
    return agent, history


def score(env_id: str, rollouts: Sequence[Any], episodes: int) -> float:
    """Mean regret over bandits (the expected loss from not pulling the best arm), else the last inner episode's return.

    The end of an inner episode is the last number of the observation that follows it.
    """
    valid, last, found = [each for each in rollouts if each.error is None], episodes - 1, []
    for rollout in valid:
        if "Bandit" in env_id:
            found.append(sum(max(rollout.task) - rollout.task[int(arm)] for _, (arm,), *_ in rollout.steps))
        else:
            ended = np.cumsum([seen[-1] if episodes > 1 else 0 for seen, *_ in rollout.steps])
            found.append(
                sum(reward for at, (*_, (reward,), _, _) in zip(ended, rollout.steps, strict=True) if at == last)
            )
    return float(np.mean(found))


def update(agent: ActorCritic, optimizer: Any, episodes: Any, settings: Any, progress: float, seed: Any) -> Any:
    """Update an agent by PPO with rollouts that it has just played.

    Args:
        agent: The agent.
        optimizer: Its optimizer.
        episodes: The rollouts, as in the learner's buffer.
        settings: The section ``ppo``.
        progress: Completed fraction of the training, by which learning rate and entropy bonus fall.
        seed: Seed of the order of rollouts.

    Returns:
        Mean losses over all its passes.
    """
    inputs, actions, rewards, mask = batch_of(episodes, agent)
    with torch.no_grad():
        before, _, values = agent.evaluate(inputs, actions)
        advantages = gae(rewards * REWARD_SCALE, values * mask, mask, settings.gamma, settings.lam)
        returns = advantages + values
        if settings.center_steps:
            advantages = advantages - (advantages * mask).sum(1, True) / mask.sum(1, True).clamp(min=1)
        spread, mean = torch.std_mean(advantages[mask], correction=0)
        advantages = (advantages - mean) / (spread + 1e-8)
    for group in optimizer.param_groups:
        group["lr"] = settings.lr * (1.0 - progress)

    def batches() -> Iterator[ppo.Batch]:
        rng = np.random.default_rng(seed)
        for _ in range(EPOCHS):
            for part in np.array_split(rng.permutation(len(episodes)), min(settings.minibatches, len(episodes))):
                yield ppo.Batch(*(each[:, part] for each in (inputs, actions, before, advantages, returns, mask)))

    bonus = settings.entropy_coef * (1.0 - progress)
    return ppo.update(agent, optimizer, batches(), CLIP, VALUE_COEF, bonus, GRAD_CLIP)


def batch_of(episodes: Sequence[dict[str, np.ndarray]], agent: ActorCritic) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Inputs (previous action, previous reward, observation), actions, rewards, mask: ``(steps, rollouts, ...)``.

    Shorter rollouts are padded; the mask is true for a step, false for padding.
    """
    columns = ("observations", "actions", "rewards")
    seen, actions, rewards = (pad_sequence([torch.from_numpy(each[name]) for each in episodes]) for name in columns)
    mask = pad_sequence([torch.ones(len(each["rewards"]), dtype=torch.bool) for each in episodes])
    if agent.is_discrete:
        actions = nn.functional.one_hot(actions.squeeze(-1).long(), agent.action_dim).float()
    before = torch.cat((actions, rewards), -1).roll(1, 0)
    before[0] = 0.0
    return torch.cat((before, seen), -1), actions, rewards.squeeze(-1), mask


def gae(rewards: Tensor, values: Tensor, mask: Tensor, gamma: float, lam: float) -> Tensor:
    """Generalised advantage estimates (Schulman et al. 2016) of rollouts that end where their mask does.

    Args:
        rewards: ``(steps, rollouts)``.
        values: Values of the states in which the actions were chosen, likewise.
        mask: Whether there is a step, likewise.
        gamma: Discount of a step.
        lam: The estimator's lambda.

    Returns:
        Advantages ``(steps, rollouts)``; 0 after the end.
    """
    advantages = torch.zeros_like(rewards)
    carried, after = torch.zeros_like(rewards[0]), torch.zeros_like(rewards[0])
    for step in range(len(rewards) - 1, -1, -1):
        carried = (rewards[step] + gamma * after - values[step] + gamma * lam * carried) * mask[step]
        advantages[step] = carried
        after = values[step]
    return advantages


@refusing
def main(argv: Sequence[str]) -> int:
    """Train with a file and its overrides; the bandit by default."""
    path, *overrides = argv or [str(Path(__file__).parent / "rl2" / "bandit.yaml")]
    config = read(path, overrides)
    train(config, lambda metrics: print(", ".join(f"{k} {v:.4g}" for k, v in metrics.items()), flush=True))
    print(f"written to {config.output_dir}: metrics.jsonl, agent.pt")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
