"""Plays rollouts with the model in training, and converts them to groups of token rows."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import TYPE_CHECKING, Any

from envlanes import Work
from envlanes.closing import Closing
from ragen.config import as_config
from ragen.extras import needs
from ragen.llm_agent import ContextSettings, LLMAgentProxy
from ragen.llm_agent.backends import HfBackend, ReplyJournal
from ragen.llm_agent.rollout import BackendActor
from ragen.statistics import mean
from ragen.training.collapse import Columns
from ragen.training.settings import check_training
from ragen.training.trajectories import Group, TokenRow, Trajectory, all_members
from ragen.validity import ENV_ERROR, env_error, failure_metrics, is_valid

with needs("train", "`ragen train`"):
    from transformers import PreTrainedModel

if TYPE_CHECKING:
    from verl import DataProto


_BATCH_SIZE = 256  # prompts per call of generate, for a model this small


@dataclass(frozen=True)
class Played:
    """One batch of rollouts.

    Attributes:
        groups: The groups to train on.
        metrics: The environments' metrics, as averaged by ``formulate_rollouts``, and ``split_trajectories``, the
            fraction of trajectories with several rows, because a prompt did not contain an earlier reply as sampled.
        errors: The tag and, where its environment failed, the ``env_error`` of each trajectory that was played.
        thoughts: The columns for collapse detection, if they are requested and enabled.
    """

    groups: list[Group]
    metrics: dict[str, float]
    errors: Sequence[Mapping[str, Any]]
    thoughts: Columns


class Player(Closing):
    """The model in its environments.

    A context manager; ``close`` may be called twice.

    Attributes:
        backend: Samples replies; ``backend.position`` and its seed determine the next samples.
        proxy: Plays the rollouts.
        sign: The sign of rewards, ``trainer.reward_sign``.
    """

    def __init__(self, config: Any, model: PreTrainedModel, tokenizer: Any) -> None:
        """Check everything; environments are created by :meth:`prepare` or the first rollout.

        Args:
            config: The whole configuration.
            model: The model.
            tokenizer: Its tokenizer.
        """
        check_training(config)
        seed = as_config(config).trainer.seed
        self.backend = HfBackend(model, tokenizer, batch_size=_BATCH_SIZE, seed=seed, share_prompts=True)
        self.proxy = LLMAgentProxy(config, self.backend, tokenizer)
        self._tokenizer = tokenizer
        self.sign = as_config(config).trainer.reward_sign
        self._turn_scores = ContextSettings.read(config).use_turn_scores
        self._rollouts = 0

    def record(self, journal: ReplyJournal) -> None:
        """Take replies from a journal where it has them, and write the others to it."""
        assert isinstance(self.proxy.actor, BackendActor)
        self.proxy.actor.journal = journal

    def prepare(self) -> None:
        """Create the environments for training and for validation.

        Raises:
            ConfigError: Their part of the configuration is invalid.
        """
        self.proxy.prepare()
        self.proxy.prepare(val=True)

    def play(self, val: bool = False, with_thoughts: bool = False) -> Played:
        """Play one episode in every environment.

        Args:
            val: Whether to play those of ``es_manager.val``.
            with_thoughts: Whether to keep prompts and thoughts, as ``collapse_detection`` samples them.
        """
        from verl import DataProto

        self._rollouts += 1
        meta_info = {"validate": val, "compute_collapse": False}
        rollouts = self.proxy.rollout(DataProto(meta_info=meta_info), val=val)
        groups = self._groups(rollouts)
        split = mean([len(member.rows) > 1 for member in all_members(groups) if member.has_signal])
        collector = self.proxy.traj_collector
        trajectories = self.proxy.rollout_states if collector is None else collector.played
        errors = [{"tag": each["tag"], ENV_ERROR: env_error(each)} for each in trajectories]
        metrics = {**rollouts.meta_info["metrics"], "split_trajectories": split}
        return Played(groups, metrics, errors, self._thoughts(val) if with_thoughts else {})

    def _thoughts(self, val: bool) -> Columns:
        states = [state for state in self.proxy.rollout_states if is_valid(state)]
        _, ctx_manager = self.proxy.prepare(val)
        columns: Columns = ctx_manager.collapse_columns(states) if states else {}
        return columns and {**columns, "group_ids": [state["group_id"] for state in states]}

    def _groups(self, rollouts: DataProto) -> list[Group]:
        columns = rollouts.non_tensor_batch
        own = {state["env_id"]: state["group_id"] for state in self.proxy.rollout_states}
        members: dict[Any, list[Trajectory]] = {}
        for _, places in groupby(range(len(rollouts)), key=columns["episode_ids"].__getitem__):
            found = list(places)
            member = self._trajectory(rollouts, found)
            members.setdefault(own.get(member.env_id, columns["group_ids"][found[0]]), []).append(member)
        return [Group(f"{self._rollouts}/{group_id}", found) for group_id, found in members.items()]

    def _trajectory(self, rollouts: DataProto, places: list[int]) -> Trajectory:
        """The trajectory whose rows have these indices; the sign turns its rewards, not its penalties."""
        columns = rollouts.non_tensor_batch
        counted = places if self._turn_scores else places[:1]  # otherwise each row has the whole trajectory's score
        score, reward = (float(rollouts.batch[name][counted].sum()) for name in ("rm_scores", "original_rm_scores"))
        rows = [row for place in places if any((row := TokenRow.formulated(rollouts, place)).mask)]
        return Trajectory(
            env_id=int(columns["env_ids"][places[0]]),
            tag=columns["tags"][places[0]],
            reward=self.sign * reward,
            score=score + (self.sign - 1) * reward,
            rows=rows,
            env_error=columns["env_error"][places[0]],
            has_signal=bool(rows),
        )

    @property
    def seed_counter(self) -> int:
        """The offset of the training seeds."""
        return self._counting.seed_counter

    @seed_counter.setter
    def seed_counter(self, value: int) -> None:
        self._counting.seed_counter = value

    @property
    def _counting(self) -> Any:
        """The holder of the seed counter: the environments of training rollouts."""
        collected = self.proxy.train_parallel_envs
        return self.proxy.train_es_manager if collected is None else collected.envs

    def work(self) -> Work:
        """The work of environments in training and validation."""
        collected = [self.proxy.train_parallel_envs, self.proxy.val_parallel_envs]
        if containers := [each.envs for each in collected if each is not None]:
            return sum((container.work() for container in containers[1:]), containers[0].work())
        return self.proxy.train_es_manager.work() + self.proxy.val_es_manager.work()

    def close(self) -> None:
        """Close the environments and their workers; may be called twice."""
        self.proxy.close()


def rollout_metrics(played: Sequence[Played], tags: Sequence[str]) -> dict[str, float]:
    """The metrics of environments, and success over all tags, as means over the valid trajectories of some rollouts.

    Args:
        played: At least one.
        tags: The tags that were played.

    Returns:
        The metrics, with those of :func:`~ragen.validity.failure_metrics`. Without a valid trajectory, ``success`` and
        ``reward`` are missing.
    """
    valid = [[member for member in all_members(one.groups) if member.env_error is None] for one in played]
    counts = [Counter(member.tag for member in members) for members in valid]
    found: dict[str, float] = {}
    for name in dict.fromkeys(name for one in played for name in one.metrics if "/env_error" not in name):
        tag, known = name.partition("/")[0], [at for at, one in enumerate(played) if name in one.metrics]
        weights = [counts[at][tag] if tag in tags else counts[at].total() for at in known]
        parts = (played[at].metrics[name] * weight for at, weight in zip(known, weights, strict=True))
        found[name] = sum(parts) / sum(weights) if any(weights) else 0.0
    sizes, rewards = sum(counts, Counter[str]()), [member.reward for members in valid for member in members]
    if rewards:
        found["success"] = sum(found[f"{tag}/success"] * sizes[tag] for tag in tags if sizes[tag]) / len(rewards)
        found["reward"] = sum(rewards) / len(rewards)
    return found | failure_metrics([each for one in played for each in one.errors])
