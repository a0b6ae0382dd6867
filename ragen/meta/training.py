"""RL^2 (Duan et al. 2016): a recurrent agent, trained by PPO over whole rollouts, learns how to learn a task.

A rollout is treated as one episode: its end is terminal, whatever ended it, since no step of the task follows.
Everything is determined by the seed and the iteration.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from time import perf_counter
from typing import Any

import numpy as np

from ragen.extras import needs
from ragen.meta.agents import MemoryAgent
from ragen.meta.learner import Learner
from ragen.meta.making import make_env, make_parallel_env
from ragen.meta.rollouts import Rollout
from ragen.meta.settings import PPOSettings, RunSettings
from ragen.torch_threads import torch_threads
from ragen.validity import check_share

with needs("meta", "an agent of meta-RL"):
    import torch
    from torch import Tensor, nn
    from torch.nn.utils.rnn import pad_sequence

    from ragen import ppo
    from ragen.checkpoints import save

EVALUATION_SEED = 1_000_003  # added to the run's seed for the evaluation's tasks and rollouts
CLIP, EPOCHS, VALUE_COEF, GRAD_CLIP = 0.2, 4, 0.25, 0.5
REWARD_SCALE = 0.1  # values should be of the order of 1, since actor and critic share weights


def train(
    settings: RunSettings, report: Callable[[dict[str, float]], object] = print
) -> tuple[MemoryAgent, list[dict[str, float]]]:
    """Train an agent; writes ``metrics.jsonl`` and ``agent.pt``.

    Args:
        settings: The run's settings.
        report: Called with the metrics of each iteration, of which some have ``eval``.

    Returns:
        The agent, and the metrics of all iterations.

    Raises:
        EnvsFailedError: More than half of the rollouts failed with their environments.
    """
    env, folder = settings.env, Path(settings.output_dir)
    made = {"start": env.start, "n_tasks": env.n_tasks, **env.arguments}
    own = make_env(env.id, env.episodes_per_task, settings.seed, **made)
    seed = settings.seed + EVALUATION_SEED
    eval_tasks: Any = make_env(env.id, 1, seed, **{**made, "n_tasks": settings.eval_tasks}).tasks.tasks
    torch.manual_seed(settings.seed)
    agent = MemoryAgent.of(own, **dict(settings.agent))
    learner = Learner(agent, own, seed=settings.seed, forward_batch=settings.forward_batch)
    optimizer = torch.optim.Adam(agent.parameters(), eps=1e-5)
    engine, history = dict(settings.engine), list[dict[str, float]]()
    copies = engine.pop("num_envs")
    folder.mkdir(parents=True, exist_ok=True)
    with (
        torch_threads(1),
        make_parallel_env(env.id, env.episodes_per_task, copies, settings.seed, settings=engine, **made) as envs,
        (folder / "metrics.jsonl").open("w", buffering=1) as file,
    ):
        for iteration in range(1, settings.iterations + 1):
            begun = perf_counter()
            learner.policy_storage.clear()
            steps = learner.collect_rollouts_parallel(settings.rollouts, parallel_env=envs)
            check_share([each.error for each in learner.last_rollouts])
            played = _valid(learner.last_rollouts)
            progress = (iteration - 1) / settings.iterations
            taken = learner.policy_storage.episodes
            learned = update(agent, optimizer, taken, settings.ppo, progress, (settings.seed, iteration - 1))
            metrics = {
                "iteration": iteration,
                "env_steps": learner._n_env_steps_total,
                "train": score(env.id, played, env.episodes_per_task),
                **learned,
                "failed": settings.rollouts - len(played),
                "steps_per_s": steps / (perf_counter() - begun),
            }
            if iteration % settings.eval_every == 0 or iteration == settings.iterations:
                valid = _valid(learner.evaluate(eval_tasks, seed, envs))
                metrics["eval"] = score(env.id, valid, env.episodes_per_task)
                save(folder / "agent.pt", agent.state_dict())
            history.append(metrics)
            file.write(json.dumps(metrics) + "\n")
            report(metrics)
    return agent, history


def _valid(rollouts: Sequence[Rollout]) -> list[Rollout]:
    return [each for each in rollouts if each.error is None]


def score(env_id: str, rollouts: Sequence[Rollout], episodes: int) -> float:
    """Mean regret over bandits (the expected loss from not pulling the best arm), else the last inner episode's return.

    The end of an inner episode is the last number of the observation that follows it.
    """
    if "Bandit" in env_id:
        return float(
            np.mean([sum(max(r.task) - r.task[int(action[0])] for _, action, *_ in r.steps) for r in rollouts])
        )
    if episodes == 1:
        return float(np.mean([sum(each.rewards) for each in rollouts]))
    ended = [np.cumsum([seen[-1] for seen, *_ in each.steps]) for each in rollouts]
    return float(np.mean([np.dot(at == episodes - 1, each.rewards) for at, each in zip(ended, rollouts, strict=True)]))


def update(
    agent: MemoryAgent,
    optimizer: torch.optim.Optimizer,
    episodes: Sequence[dict[str, np.ndarray]],
    settings: PPOSettings,
    progress: float,
    seed: Any,
) -> dict[str, float]:
    """Update an agent by PPO with rollouts that it has just played.

    Args:
        agent: The agent.
        optimizer: Its optimizer.
        episodes: The rollouts, as in an :class:`~ragen.meta.rollouts.EpisodeBuffer`.
        settings: The settings of PPO.
        progress: Completed fraction of the training, by which learning rate and entropy bonus fall.
        seed: Seed of the order of rollouts.

    Returns:
        Means over all its passes.
    """
    inputs, actions, rewards, mask = batch_of(episodes, agent)
    with torch.no_grad():
        logs_before, _, values = agent.evaluate(inputs, actions)
        advantages = ppo.gae(rewards * REWARD_SCALE, values * mask, mask, settings.gamma, settings.lam)
        returns = advantages + values
        if settings.center_steps:
            advantages = advantages - (advantages * mask).sum(1, True) / mask.sum(1, True).clamp(min=1)
        mean = (advantages * mask).sum() / mask.sum()
        spread = (((advantages - mean) * mask).square().sum() / mask.sum()).sqrt()
        advantages = (advantages - mean) / (spread + 1e-8) * mask
    for group in optimizer.param_groups:
        group["lr"] = settings.lr * (1.0 - progress)
    rng = np.random.default_rng(seed)
    parts: list[ppo.Losses] = []
    for _ in range(EPOCHS):
        for part in np.array_split(rng.permutation(len(episodes)), min(settings.minibatches, len(episodes))):
            rows = torch.from_numpy(part)
            logs, entropies, values = agent.evaluate(inputs[:, rows], actions[:, rows])
            before, gains, targets, valid = (each[:, rows] for each in (logs_before, advantages, returns, mask))
            found = ppo.losses(logs, before, gains, entropies, values, targets, CLIP, valid)
            found.total(VALUE_COEF, settings.entropy_coef * (1.0 - progress)).backward()  # type: ignore[no-untyped-call]
            ppo.optimiser_step(optimizer, agent, GRAD_CLIP)
            parts.append(found)
    return ppo.means(parts)


def batch_of(episodes: Sequence[dict[str, np.ndarray]], agent: MemoryAgent) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Inputs (previous action, previous reward, observation), actions, rewards, mask: ``(steps, rollouts, ...)``.

    Shorter rollouts are padded; the mask is 1 for a step, 0 for padding.
    """
    columns = ("observations", "actions", "rewards")
    seen, actions, rewards = (pad_sequence([torch.from_numpy(each[name]) for each in episodes]) for name in columns)
    mask = pad_sequence([torch.ones(len(each["rewards"])) for each in episodes])
    if agent.is_discrete:
        actions = nn.functional.one_hot(actions.squeeze(-1).long(), agent.action_dim).float()
    before = torch.cat((actions, rewards), -1)
    before = torch.cat((torch.zeros_like(before[:1]), before[:-1]))
    return torch.cat((before, seen), -1), actions, rewards.squeeze(-1), mask
