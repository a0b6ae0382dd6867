"""RAGEN's parts of a training step in verl's V1 trainer, which has no hooks for them (checked with 0.9.1).

Four of its methods are extended, once, when :class:`~ragen.agent_loop.manager.RagenLoopManager` is created::

    on_sample_begin     also records groups that the sampler filters out
    _balance_batch      rows are put in order; thoughts are measured (collapse_detection); groups are chosen by entropy
    _compute_advantage  advantages are weighed: filter_loss_scaling, and ragen.llm_agent.filtering.advantages
    _compute_metrics    what environments did, by tag; early stops; tables

Rows come from the transfer queue in the order of completion, which differs between runs. They are sorted here as in the
data set, so that results do not depend on the speed of environments.

Everything is read from the section ``ragen`` of the trainer's configuration. State between steps (the moving averages
of collapse detection, the history of early stops) is not in verl's checkpoints: a resumed training starts without it,
as RAGEN's does.
"""

from __future__ import annotations

import functools
import logging
import re
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from statistics import fmean
from typing import Any
from uuid import uuid4

from ragen.agent_loop.group_sampler import GroupSampler, groups_of, uid_of
from ragen.agent_loop.script import Script
from ragen.agent_loop.step_metrics import PREFIX, EpisodeSummary, add_metrics, episodes_of
from ragen.errors import CollectError
from ragen.extras import needs
from ragen.llm_agent.config.context import CollapseSettings
from ragen.llm_agent.evaluation.collapse import CollapseDetector, PlayedThoughts, Thought
from ragen.llm_agent.filtering.advantages import AdvantageWeights, LossScaling
from ragen.llm_agent.filtering.early_stop import EarlyStop
from ragen.llm_agent.filtering.group_filter import read_filter
from ragen.llm_agent.prompting.replies import thought_of
from ragen.statistics import sample_std

with needs("verl", "verl's agent loop"):
    import torch
    import transfer_queue as queue
    from omegaconf import OmegaConf
    from tensordict import TensorDict
    from verl.trainer.ppo.padding_utils import construct_minimal_padding_template
    from verl.utils.tensordict_utils import list_of_dict_to_tensordict
    from verl.workers.utils.padding import response_from_nested

log = logging.getLogger(__name__)

_MARK = "_is_extended_by_ragen"
_STEPS = "_ragens_steps"
_VALIDATED = re.compile(r"val-aux/(?P<tag>.+)/success/mean@\d+")


class Steps:
    """The state of one training between steps.

    Attributes:
        collapse: Measures thoughts.
        stop: Decides when to stop.
        weights: Weights of advantages.
        choice: Choice of groups by entropy; None if they are not chosen by it.
        tables: Which of them are written.
        episodes: All episodes of the step, if groups were filtered out.
    """

    def __init__(self, config: Any, tokenizer: Any) -> None:
        """Read RAGEN's configuration.

        Args:
            config: The whole of it.
            tokenizer: The model's.

        Raises:
            ConfigError: A key has an invalid value.
        """
        self._script = Script(config, tokenizer)
        self._tokenizer = tokenizer
        can_measure = self._script.is_one_row and self._script.settings.enable_think
        self.collapse = CollapseDetector(CollapseSettings.read(config) if can_measure else CollapseSettings())
        self.stop = EarlyStop.read(config)
        self.weights = AdvantageWeights.read(config)
        choice = read_filter(config)
        self.choice = choice if choice.needs_entropies else None
        self.episodes: list[EpisodeSummary] = []
        self._played: tuple[list[Thought], list[str], int] = ([], [], 0)

    # Thoughts

    def forget(self) -> None:
        """Begin a new step."""
        self.episodes, self._played = [], ([], [], 0)

    def note(self, batch: Any) -> None:
        """Record a batch's episodes before its groups are filtered."""
        self.episodes += episodes_of(batch)

    def note_thoughts(self, batch: Any) -> None:
        """Read a batch's thoughts."""
        fields = ["prompts", "responses", "response_mask"]
        data = queue.kv_batch_get(keys=batch.keys, partition_id=batch.partition_id, select_fields=fields)
        thoughts, trajectories, replies = self._played
        for key, *row in zip(batch.keys, *(data[name].unbind() for name in fields), strict=True):
            place = len(trajectories)
            trajectories.append(key)
            prompt, response, mask = (each.tolist() for each in row)
            turns = spans(mask)
            for turn, (start, end) in enumerate(turns, 1):
                thought = thought_of(self._script.read(response[start:end]).text)
                if ids := self._tokenizer(thought, add_special_tokens=False)["input_ids"] if thought else []:
                    before = (*prompt, *response[:start])
                    thoughts.append(Thought(place, uid_of(key), turn, before, tuple(ids)))
            replies += len(turns)
        self._played = (thoughts, trajectories, replies)

    def measured(self, trainer: Any, batch: Any, balance: Callable[..., Any]) -> dict[str, float]:
        """The metrics of the step's thoughts, scored by the actor.

        Args:
            trainer: verl's.
            batch: Some of its rows, used as templates for the scored ones.
            balance: verl's own ``_balance_batch``.
        """
        if not self._played[1]:
            self.note_thoughts(batch)
        thoughts, trajectories, replies = self._played

        def score(prompts: Sequence[Sequence[int]], thoughts: Sequence[Sequence[int]]) -> torch.Tensor:
            return cross_log_probs(trainer, batch, balance, prompts, thoughts)

        return self.collapse.measure(PlayedThoughts(thoughts, len(trajectories), replies), score, trainer.global_steps)

    # Groups by entropy

    def chosen(self, trainer: Any, batch: Any, metrics: dict[str, Any], balance: Callable[..., Any]) -> Any:
        """A batch's rows of the groups chosen by entropy; the others are removed from the transfer queue.

        The probabilities are computed twice, as in RAGEN: for all groups here, and for the chosen ones by verl's own
        step.

        Raises:
            CollectError: No group is left.
        """
        assert self.choice is not None
        whole = balance(trainer, copied(batch), {})
        whole = trainer._compute_old_log_prob(whole, {})
        where = {"keys": batch.keys, "partition_id": batch.partition_id}
        data = queue.kv_batch_get(**where, select_fields=["entropy", "response_mask"])
        means = {
            key: float((entropy * mask).sum() / mask.sum().clamp(min=1))
            for key, entropy, mask in zip(
                batch.keys, data["entropy"].unbind(), data["response_mask"].unbind(), strict=True
            )
        }
        groups = groups_of(episodes_of(batch), batch, means)
        places = self.choice.chosen(self.choice.measures(list(groups.values())))
        if not places:
            raise CollectError(
                "rollout_filter_* by entropy has left out every group of the step, and the model servers sleep "
                "already, so that none can be played in their place; keep more groups (rollout_filter_value)."
            )
        kept = {list(groups)[place] for place in places}
        stays = [uid_of(key) in kept for key in batch.keys]
        left = [key for key, does in zip(batch.keys, stays, strict=True) if not does]
        queue.kv_clear(partition_id=batch.partition_id, keys=[*left, *(set(whole.keys) - set(batch.keys))])
        metrics |= self.choice.metrics(list(groups.values()), places)
        return queue.KVBatchMeta(
            partition_id=batch.partition_id,
            keys=[key for key, does in zip(batch.keys, stays, strict=True) if does],
            tags=[tag for tag, does in zip(batch.tags, stays, strict=True) if does],
            extra_info=batch.extra_info,
        )

    # Advantages

    def weigh(self, trainer: Any, batch: Any, scale: float) -> dict[str, float]:
        """Multiply the advantages of a batch's rows in the transfer queue; returns metrics."""
        if not self.weights and scale == 1:
            return {}
        where = {"keys": batch.keys, "partition_id": batch.partition_id}
        advantages = queue.kv_batch_get(**where, select_fields=["advantages"])["advantages"]
        told: dict[str, float] = {}
        if self.weights:
            weights, told = self._weights(trainer, batch)
            each = zip(advantages.unbind(), weights, strict=True)
            rows = [self.weights.multiplied(row[None], [weight])[0] for row, weight in each]
            advantages = torch.nested.as_nested_tensor(rows, layout=torch.jagged)
        fields = TensorDict({"advantages": advantages * scale}, batch_size=len(batch.keys))
        queue.kv_batch_put(**where, fields=fields)
        return told

    def _weights(self, trainer: Any, batch: Any) -> tuple[list[float], dict[str, float]]:
        """The weight of each row; 0 for padding rows, which have no advantage."""
        scores = "token_level_rewards" if trainer.config.algorithm.use_kl_in_reward else "rm_scores"
        real = [not tag.get("is_padding", False) for tag in batch.tags]
        keys = [key for key, is_real in zip(batch.keys, real, strict=True) if is_real]
        fields = [scores, "response_mask"]
        data = queue.kv_batch_get(keys=keys, partition_id=batch.partition_id, select_fields=fields)
        lengths, sums = ([float(row.sum()) for row in data[name].unbind()] for name in ("response_mask", scores))
        episodes = [key.rpartition("_")[0] for key in keys]
        found, told = self.weights.of_rows(lengths, episodes, [uid_of(key) for key in keys], sums)
        weights = iter(found)
        return [next(weights) if is_real else 0.0 for is_real in real], told

    # The end of a step

    def ended(self, trainer: Any, kept: Sequence[EpisodeSummary], metrics: Mapping[str, Any]) -> dict[str, float]:
        """End a step and write its tables; returns metrics if the training should stop, otherwise nothing.

        Args:
            trainer: verl's.
            kept: The trajectories that were trained on.
            metrics: The step's metrics.
        """
        groups: dict[str, list[float]] = defaultdict(list)
        for episode in sorted(self.episodes or kept, key=lambda each: (each.seed, each.tag)):
            groups[episode.group].append(episode.numbers["score"])
        if groups:
            self.stop.after_step(fmean(map(sample_std, groups.values())), len(groups))
        validated = {name: _VALIDATED.fullmatch(name) for name in metrics}
        self.stop.after_validation({found["tag"]: float(metrics[name]) for name, found in validated.items() if found})
        return self.stop.metrics


def spans(mask: Sequence[int]) -> list[tuple[int, int]]:
    """The start and end of each reply in a row."""
    edges = [at for at, (one, other) in enumerate(zip([0, *mask], [*mask, 0], strict=True)) if bool(one) != bool(other)]
    return list(zip(edges[::2], edges[1::2], strict=True))


def copied(batch: Any) -> Any:
    """A copy of a batch, which verl may reorder."""
    return queue.KVBatchMeta(
        partition_id=batch.partition_id,
        keys=list(batch.keys),
        tags=list(batch.tags),
        extra_info=dict(batch.extra_info or {}),
    )


def cross_log_probs(
    trainer: Any,
    batch: Any,
    balance: Callable[..., Any],
    prompts: Sequence[Sequence[int]],
    thoughts: Sequence[Sequence[int]],
) -> torch.Tensor:
    """The actor's summed log-probability of each thought after each prompt, float64 ``(thoughts, prompts)``.

    The pairs are temporary rows of the transfer queue, which verl passes to the actor like its own.

    Args:
        trainer: verl's.
        batch: Rows used as templates.
        balance: verl's own ``_balance_batch``.
        prompts: Token ids.
        thoughts: Token ids.
    """
    source = queue.kv_batch_get(keys=batch.keys[:1], partition_id=batch.partition_id)[0]
    template, tag = construct_minimal_padding_template(source, batch.tags[0], trainer.tokenizer.eos_token_id)
    name = f"collapse{uuid4().hex}"
    keys, rows, tags = [], [], []
    for number, (thought, prompt) in enumerate((thought, prompt) for thought in thoughts for prompt in prompts):
        ids, said = torch.tensor([*prompt, *thought]), torch.tensor(list(thought))
        ones, nothing = torch.ones_like(said), torch.zeros(len(said))
        rows.append(
            {
                **template,
                "uid": name,
                "prompts": ids[: len(prompt)],
                "responses": said,
                "input_ids": ids,
                "attention_mask": torch.ones_like(ids),
                "position_ids": torch.arange(len(ids)),
                "response_mask": ones,
                "loss_mask": ones,
                "rm_scores": nothing,
                "rollout_log_probs": nothing,
            }
        )
        keys.append(f"{name}_{number}_0")
        sizes = {"prompt_len": len(prompt), "response_len": len(thought), "seq_len": len(ids)}
        tags.append({**tag, **sizes, "is_padding": False})
    queue.kv_batch_put(keys=keys, partition_id=batch.partition_id, fields=list_of_dict_to_tensordict(rows), tags=tags)
    pairs = balance(trainer, queue.KVBatchMeta(partition_id=batch.partition_id, keys=keys, tags=tags), {})
    try:
        temperature = trainer.config.actor_rollout_ref.rollout.temperature
        pairs.extra_info.update(calculate_entropy=False, compute_loss=False, temperature=temperature)
        trainer.actor_rollout_wg.compute_log_prob(pairs)
        where = {"keys": keys, "partition_id": batch.partition_id}
        data = queue.kv_batch_get(**where, select_fields=["log_probs", "response_mask"])
        found = response_from_nested(data["log_probs"], data["response_mask"]).unbind()
    finally:
        queue.kv_clear(keys=list(pairs.keys), partition_id=batch.partition_id)
    return torch.stack([row.double().sum() for row in found]).reshape(len(thoughts), len(prompts))


def in_order(batch: Any) -> Any:
    """A batch with its rows in the order of the data set: by seed and tag, number in the group, and turn."""
    starts = {episode.group: (episode.seed, episode.tag) for episode in episodes_of(batch)}

    def place(key: str) -> tuple[Any, ...]:
        group, session, row = key.rsplit("_", 2)
        return (group not in starts, *starts.get(group, (0, "")), int(session), int(row))

    order = sorted(range(len(batch.keys)), key=lambda at: place(batch.keys[at]))
    ordered = copied(batch)
    ordered.reorder(order)
    return ordered


# Extending verl's methods


def extend(trainer: type) -> None:
    """Extend a class of trainers by RAGEN's parts; a second call has no effect.

    Args:
        trainer: verl's ``PPOTrainer``.

    Raises:
        ConfigError: It lacks a method that this package extends.
    """
    from ragen.errors import ConfigError

    if lacking := [name for name in _AROUND if not callable(getattr(trainer, name, None))]:
        raise ConfigError(
            f"this verl's trainer has no {', '.join(lacking)}, where RAGEN's parts of a step are done; install verl "
            "0.9, or name another actor_rollout_ref.rollout.agent.agent_loop_manager_class."
        )
    for name, around in _AROUND.items():
        inner = getattr(trainer, name)
        if not getattr(inner, _MARK, False):
            setattr(trainer, name, _extended(inner, around))


def _extended(inner: Callable[..., Any], around: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(inner)
    def method(self: Any, *args: Any, **kwargs: Any) -> Any:
        return around(inner, self, *args, **kwargs)

    setattr(method, _MARK, True)
    return method


def steps_of(trainer: Any) -> Steps:
    """The state of one training."""
    steps = getattr(trainer, _STEPS, None)
    if steps is None:
        section = OmegaConf.to_container(trainer.config.ragen, resolve=True)
        steps = Steps(section, trainer.tokenizer)
        setattr(trainer, _STEPS, steps)
    return steps


def _sample_begins(inner: Callable[..., Any], self: Any) -> None:
    inner(self)
    steps = steps_of(self)
    steps.forget()
    if isinstance(self.replay_buffer, GroupSampler):
        is_due = steps.collapse.is_due(self.global_steps)

        def note(batch: Any) -> None:
            steps.note(batch)
            if is_due:
                steps.note_thoughts(batch)

        self.replay_buffer.on_batch = note


def _balance(inner: Callable[..., Any], self: Any, batch: Any, metrics: dict[str, Any], **kwargs: Any) -> Any:
    steps = steps_of(self)
    batch = in_order(batch)
    if steps.collapse.is_due(self.global_steps):
        metrics |= steps.measured(self, batch, inner)
    if steps.choice is not None:
        steps.note(batch)
        batch = steps.chosen(self, batch, metrics, inner)
    return inner(self, batch, metrics, **kwargs)


def entropies_of(batch: Any) -> dict[str, float]:
    """The means over a step's trajectories of their summed entropies, in nats, and of their sampled tokens."""
    keys = [key for key, tag in zip(batch.keys, batch.tags, strict=True) if not tag.get("is_padding", False)]
    if not keys:
        return {}
    fields = ["entropy", "response_mask"]
    data = queue.kv_batch_get(keys=keys, partition_id=batch.partition_id, select_fields=fields)
    if set(fields) - set(data.keys()):  # with the server's probabilities, verl has no entropies
        return {}
    pairs = list(zip(data["entropy"].unbind(), data["response_mask"].unbind(), strict=True))
    rollouts = len({key.rpartition("_")[0] for key in keys})
    return {
        "rollout/entropy_sum": sum(float((entropy * mask).sum()) for entropy, mask in pairs) / rollouts,
        "rollout/n_generated_tokens": sum(float(mask.sum()) for _, mask in pairs) / rollouts,
    }


def _advantage(inner: Callable[..., Any], self: Any, batch: Any, metrics: dict[str, Any], **kwargs: Any) -> Any:
    result = inner(self, batch, metrics, **kwargs)
    metrics |= entropies_of(batch)
    metrics |= steps_of(self).weigh(self, batch, LossScaling.factor(metrics))
    return result


def _metrics(
    inner: Callable[..., Any], self: Any, batch: Any, metrics: dict[str, Any], *args: Any, **kwargs: Any
) -> Any:
    result = inner(self, batch, metrics, *args, **kwargs)
    episodes = episodes_of(batch)
    if not any(name.startswith(f"{PREFIX}/") for name in metrics):  # unless the sampler has logged all groups
        add_metrics(episodes, metrics)
    steps = steps_of(self)
    if told := steps.ended(self, episodes, metrics):
        metrics |= told
        self.total_training_steps = self.global_steps  # verl's loop checks it before the next step
        print(f"stopped after step {self.global_steps}: {steps.stop.reason}.", flush=True)
        every = self.config.trainer.save_freq
        if every > 0 and self.global_steps % every:
            self._save_checkpoint()
    return result


_AROUND: dict[str, Callable[..., Any]] = {
    "on_sample_begin": _sample_begins,
    "_balance_batch": _balance,
    "_compute_advantage": _advantage,
    "_compute_metrics": _metrics,
}
