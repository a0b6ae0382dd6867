"""Trains on episodes some of whose environments fail, and proves that nothing is learned from these.

``python benchmarks/failed_episodes.py --episodes 10000``

A scripted player walks environments that raise twice, hang, end their own process past ``max_restarts``, or whose
service is gone at the reset. Each step's rollout is trained on twice: as it is, and as a rollout without the failed
episodes and what they leave without a comparison. The two have to be the same bit for bit: advantages, and the weights
of two models after every update. The same holds for verl's GRPO on the batch of ``LLMAgentProxy``, as RAGEN's trainer
calls it. The exit code is 1 if a token of a failed episode has loss, or if anything differs.
"""

from __future__ import annotations

import argparse
import logging
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from random import Random
from typing import Any

import torch

from ragen.config.loading import as_config, load_config
from ragen.llm_agent.backends import Reply, create_tokenizer
from ragen.training.player import Player, rollout_metrics
from ragen.training.tiny_model import build_model
from ragen.training.training_batch import training_batch
from ragen.training.updates import Learner
from ragen.validity import env_error, failures_in_words

GROUPS, SIZE = 50, 8
FAULTS = {"Raise": 0.02, "Hang": 0.002, "Die": 0.002}
"""The share of each fault among the actions of a turn."""


@dataclass
class Figures:
    """The counts of a whole run; every count but the first four has to be 0."""

    episodes: int = 0
    trained: int = 0
    judged: int = 0
    errors: list[str | None] = field(default_factory=list)
    failed_tokens: int = 0
    unequal_advantages: int = 0
    unequal_of_verl: int = 0
    unequal_weights: int = 0
    wrong_rates: int = 0

    @property
    def is_sound(self) -> bool:
        """Whether nothing was learned from what failed."""
        unequal = self.unequal_advantages + self.unequal_of_verl + self.unequal_weights
        return not self.failed_tokens + unequal + self.wrong_rates


def main() -> int:
    """Train, compare and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--episodes", type=int, default=10_000)
    parser.add_argument("--policy", default="mask", choices=("mask", "drop_group"))
    given = parser.parse_args()
    logging.disable(logging.WARNING)  # thousands of failures, all on purpose
    began = time.monotonic()
    figures = run(-(-given.episodes // (GROUPS * SIZE)), policy=given.policy)
    print(f"{figures.episodes} episodes; failed: {failures_in_words(figures.errors)}")
    print(f"judged {figures.judged}, learned from {figures.trained}")
    print(f"tokens of failed episodes with loss: {figures.failed_tokens}")
    print(f"steps with other advantages than without the failed episodes: {figures.unequal_advantages}")
    print(f"steps in which those of verl's GRPO on RAGEN's batch differ: {figures.unequal_of_verl}")
    print(f"steps after which the two models' weights differ: {figures.unequal_weights}")
    print(f"steps whose success is not that of the judged episodes: {figures.wrong_rates}")
    print("sound" if figures.is_sound else "NOT SOUND", f"({time.monotonic() - began:.0f} s)")
    return 0 if figures.is_sound else 1


def run(
    steps: int,
    groups: int = GROUPS,
    size: int = SIZE,
    faults: Mapping[str, float] = FAULTS,
    policy: str = "mask",
    more: Sequence[str] = (),
) -> Figures:
    """Train for some steps with the rollouts as they are, and beside it with those that nothing is missing from."""
    torch.set_num_threads(1)  # the sums of several threads depend on where memory lies
    config = as_config(load_config("tiny", [*_overrides(groups, size, policy), *more]))
    tokenizer = create_tokenizer(config)
    models = [build_model(config.tiny_model, tokenizer, 0) for _ in range(2)]
    learners = [Learner(model, config) for model in models]
    figures = Figures()
    with Player(config, models[0], tokenizer) as player:
        player.backend.generate = _scripted(player.backend.generate, tokenizer, faults)
        for step in range(steps):
            _step(player, learners, tokenizer.pad_token_id, step, policy, figures)
            same = zip(models[0].parameters(), models[1].parameters(), strict=True)
            figures.unequal_weights += not all(torch.equal(one, other) for one, other in same)
    return figures


def _step(player: Player, learners: list[Learner], pad_id: int, step: int, policy: str, figures: Figures) -> None:
    played = player.play()
    states = player.proxy.rollout_states
    _, ctx_manager = player.proxy.prepare()
    errors = [env_error(state) for state in states]
    kept = _compared(states, errors, policy)
    whole, rest = ctx_manager.formulate_rollouts(states), ctx_manager.formulate_rollouts([states[i] for i in kept])

    figures.episodes += len(states)
    figures.trained += len(kept)
    figures.judged += errors.count(None)
    figures.errors += errors
    is_failed = [error is not None for error in whole.non_tensor_batch["env_error"]]
    figures.failed_tokens += int(sum(whole.batch[name][is_failed].sum() for name in ("loss_mask", "response_mask")))
    figures.unequal_of_verl += not torch.equal(_of_verl(whole), _of_verl(rest))
    wins = [state["metrics"]["Frail/success"] for state, error in zip(states, errors, strict=True) if error is None]
    figures.wrong_rates += abs(rollout_metrics([played], ["Frail"])["success"] - sum(wins) / len(wins)) > 1e-9

    batches = [training_batch(played.groups, pad_id), training_batch(player._groups(rest), pad_id)]
    one, other = (learner.prepared(batch) for learner, batch in zip(learners, batches, strict=True))
    columns = [each.columns["advantages"] for each in (one, other)]
    figures.unequal_advantages += not torch.equal(*columns)
    for learner, batch in zip(learners, batches, strict=True):
        learner.update(batch, step)


def _compared(states: Sequence[Mapping[str, Any]], errors: Sequence[str | None], policy: str) -> list[int]:
    """The trajectories that can be compared, by a rule of this script's own."""
    groups: dict[int, list[int]] = {}
    for place, state in enumerate(states):
        groups.setdefault(state["group_id"], []).append(place)
    kept = []
    for members in groups.values():
        valid = [place for place in members if errors[place] is None]
        if len(valid) >= (len(members) if policy == "drop_group" else min(2, len(members))):
            kept += valid
    return sorted(kept)


def _of_verl(batch: Any) -> torch.Tensor:
    """The advantages of tokens with loss, by verl's GRPO as RAGEN's trainer calls it."""
    from verl.trainer.ppo.core_algos import compute_grpo_outcome_advantage

    mask = batch.batch["loss_mask"]
    index = batch.non_tensor_batch["group_ids"]
    found, _ = compute_grpo_outcome_advantage(batch.batch["rm_scores"], mask, index)
    return found[mask.bool()]


def _scripted(real: Any, tokenizer: Any, faults: Mapping[str, float]) -> Any:
    """Replies by chance, with the prompts that the model would have been given."""
    chance = Random(7)

    def generate(requests: Any, sampling: Any) -> list[Reply]:
        made = []
        for reply in real(requests, sampling):
            (word,) = chance.choices([*faults, "Go", "Stay"], [*faults.values(), 0.7, 0.3 - sum(faults.values())])
            ids = [*tokenizer(f"{word}</answer>", add_special_tokens=False)["input_ids"], tokenizer.eos_token_id]
            made.append(
                Reply(f"{word}</answer>", token_ids=ids, log_probs=[-1.0] * len(ids), prompt_ids=reply.prompt_ids)
            )
        return made

    return generate


def _overrides(groups: int, size: int, policy: str) -> list[str]:
    env = "{env_type: 'frail:Frail', max_actions_per_traj: 4, max_tokens: 20, env_instruction: go, env_config: {}}"
    sizes = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 32}
    return [
        *(f"tiny_model.{name}={value}" for name, value in sizes.items()),
        *("agent_proxy.enable_think=false", "agent_proxy.max_turn=4", "agent_proxy.max_actions_per_turn=1"),
        *("actor_rollout_ref.rollout.response_length=2", f"+custom_envs.Frail={env}"),
        *("es_manager.use_multiprocessing=true", "es_manager.max_workers=2", "es_manager.max_restarts=1"),
        *("es_manager.step_timeout=0.5", "es_manager.crash_report_dir=null", f"es_manager.train.env_groups={groups}"),
        *(f"es_manager.train.group_size={size}", "es_manager.train.env_configs.tags=[Frail]"),
        *(f"es_manager.train.env_configs.n_groups=[{groups}]", f"es_manager.failed_trajectories={policy}"),
        *("es_manager.val.env_groups=1", "es_manager.val.env_configs.tags=[Frail]"),
        "es_manager.val.env_configs.n_groups=[1]",
    ]


if __name__ == "__main__":
    sys.exit(main())
