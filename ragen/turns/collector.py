"""Collects trajectories, a row of tokens for each turn, from a manager of environments and an actor.

    reset -> [ prompts of the active -> actor -> texts -> step ] x max_steps -> rows, in the order of trajectories
             |------------------------ vanilla -----------------------|
    |-------------------- dynamic: again, until enough groups have differing rewards ----------------------------|

The batch is verl-agent's: the rows of a trajectory in the order of its turns, each with the whole trajectory's reward.
Only environments whose episode goes on are prompted. A trajectory that :mod:`ragen.validity` excludes has no rows in
it, since a trainer makes its own masks and means of what the batch has.
"""

from __future__ import annotations

import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import count
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from ragen.errors import BackendError, CollectError, ConfigError, InputError
from ragen.llm_agent.batches.dataproto import data_proto, object_array
from ragen.turns.batches import Answers, CollectorSettings, PromptEncoder, ask, read_answers, stacked
from ragen.validity import ENV_ERROR, check_share, env_error, is_valid, with_signal

if TYPE_CHECKING:
    from verl import DataProto

Rows = list[list[dict[str, Any]]]


class Collected(NamedTuple):
    """Trajectories; every array has one value per trajectory.

    Attributes:
        batch_list: The rows of each, in the order of its turns.
        episode_rewards: Sums of rewards, float32.
        episode_lengths: Turns, float32.
        success: Arrays by name, such as ``success_rate``.
        traj_uid: Unique names.
        tool_callings: Sums of ``info["tool_calling"]``, float32.
    """

    batch_list: Rows
    episode_rewards: np.ndarray
    episode_lengths: np.ndarray
    success: dict[str, np.ndarray]
    traj_uid: np.ndarray
    tool_callings: np.ndarray

    def some(self, rows: Sequence[int]) -> Collected:
        """A selection of the trajectories."""
        index = np.array(rows, dtype=int)
        success = {name: values[index] for name, values in self.success.items()}
        arrays = (self.episode_rewards, self.episode_lengths, self.traj_uid, self.tool_callings)
        rewards, lengths, names, tools = (each[index] for each in arrays)
        return Collected([self.batch_list[row] for row in rows], rewards, lengths, success, names, tools)

    def __add__(self, other: Collected) -> Collected:  # type: ignore[override]  # trajectories, not fields
        """These trajectories and others."""
        return Collected(
            self.batch_list + other.batch_list,
            np.concatenate([self.episode_rewards, other.episode_rewards]),
            np.concatenate([self.episode_lengths, other.episode_lengths]),
            {name: np.concatenate([values, other.success[name]]) for name, values in self.success.items()},
            np.concatenate([self.traj_uid, other.traj_uid]),
            np.concatenate([self.tool_callings, other.tool_callings]),
        )


def to_list_of_dict(batch: DataProto) -> list[dict[str, Any]]:
    """The rows of a batch, each with its tensors and objects by name."""
    tensors = dict(batch.batch.items()) if batch.batch is not None else {}
    columns = {**tensors, **batch.non_tensor_batch}
    return [{name: column[row] for name, column in columns.items()} for row in range(len(batch))]


def rewards_differ(rewards: np.ndarray) -> bool:
    """Whether the rewards of a group differ by more than rounding."""
    return not np.allclose(rewards, rewards[0])


def filter_group_data(
    batch_list: Rows,
    episode_rewards: np.ndarray,
    episode_lengths: np.ndarray,
    success: dict[str, np.ndarray],
    traj_uid: np.ndarray,
    tool_callings: np.ndarray,
    config: Any = None,
    last_try: bool = False,
    *,
    group_n: int | None = None,
) -> Collected:
    """Drop the groups that give no learning signal: the rewards of trajectories that failed do not count.

    Args:
        batch_list: See :class:`Collected`; members of a group are adjacent.
        episode_rewards: See :class:`Collected`.
        episode_lengths: See :class:`Collected`.
        success: See :class:`Collected`.
        traj_uid: See :class:`Collected`.
        tool_callings: See :class:`Collected`.
        config: The whole configuration, which has the group size if ``group_n`` is omitted.
        last_try: Keep everything, since there is no further try.
        group_n: Members per group.

    Raises:
        InputError: The trajectories are not whole groups, or the size of groups is unknown.
    """
    given = Collected(batch_list, episode_rewards, episode_lengths, success, traj_uid, tool_callings)
    if last_try:
        return given
    size = group_n or CollectorSettings.read(config or {}).group_n
    if size is None or len(batch_list) % size:
        raise InputError(f"{len(batch_list)} trajectories are no whole groups of {size} (group_n, or env.rollout.n).")
    groups = [range(start, start + size) for start in range(0, len(batch_list), size)]
    learned = [[place for place in group if _has_signal(batch_list[place])] for group in groups]
    kept = [
        group for group, some in zip(groups, learned, strict=True) if some and rewards_differ(episode_rewards[some])
    ]
    return given.some([place for group in kept for place in group])


def _has_signal(rows: Sequence[Mapping[str, Any]]) -> bool:
    """Whether a trajectory is learned from; one that failed at its reset has no rows."""
    return bool(rows) and all(row.get("has_signal", True) for row in rows)


def _judged(found: Collected, place: int, tag: str, error: str | None) -> dict[str, Any]:
    """A trajectory as metrics see it."""
    metrics = {"num_actions": float(found.episode_lengths[place]), "reward": float(found.episode_rewards[place])}
    success = found.success.get("success_rate")
    if success is not None and not np.isnan(success[place]):
        metrics["success"] = float(success[place])
    return {"tag": tag, ENV_ERROR: error, "metrics": {f"{tag}/{name}": value for name, value in metrics.items()}}


TENSORS = ("prompts", "responses", "input_ids", "attention_mask", "position_ids")
OPTIONAL_TENSORS = ("rollout_log_probs", "old_log_probs", "ref_log_prob")
COLUMNS = ("uid", "traj_uid", "anchor_obs", "index", "data_source", "is_action_valid", "rewards", "active_masks")


class TrajectoryCollector:
    """Collects rollouts.

    Attributes:
        config: The whole configuration.
        settings: Its settings for collectors.
        tokenizer: The actor's tokenizer.
        failures: Why an environment got no reply or could not continue in the last rollout, by index.
        played: All trajectories of the last call of :meth:`multi_turn_loop`, also those that are not in its batch:
            mappings with ``tag``, ``env_error`` and ``metrics``, see :mod:`ragen.llm_agent.batches.metrics`.
    """

    def __init__(self, config: Any, tokenizer: Any, processor: Any = None) -> None:
        """Read the configuration and test the chat template.

        Args:
            config: See :class:`~ragen.turns.batches.CollectorSettings`.
            tokenizer: A fast tokenizer with a chat template.
            processor: Processes images; None leaves placeholders in their places.

        Raises:
            ConfigError: A key is missing or has an invalid value, or there is no chat template.
        """
        self.config, self.tokenizer, self.processor = config, tokenizer, processor
        self.settings = CollectorSettings.read(config)
        if self.settings.max_steps is None:
            raise ConfigError("configuration key 'agent_proxy.max_turn' is missing; expected an integer of at least 1.")
        self.failures: dict[int, str] = {}
        self.played: list[dict[str, Any]] = []
        self._encoder = PromptEncoder(self.settings, tokenizer, processor)

    def preprocess_batch(
        self, gen_batch: DataProto, obs: Mapping[str, Any], rows: Sequence[int] | None = None
    ) -> DataProto:
        """A manager's prompts as a batch for the actor.

        Args:
            gen_batch: Its columns ``index`` and ``data_source`` are copied if it has a row for each environment.
            obs: The manager's observations.
            rows: Indices of the environments to prompt; all by default.
        """
        size = len(obs["text"])
        columns = {
            name: gen_batch.non_tensor_batch[name]
            for name in ("index", "data_source")
            if len(gen_batch.non_tensor_batch.get(name, ())) == size
        }
        return self._encoder.batch(obs, range(size) if rows is None else rows, columns)

    def multi_turn_loop(
        self, gen_batch: DataProto, actor_rollout_wg: Any, envs: Any, is_train: bool = True
    ) -> DataProto:
        """Collect a rollout; in training, dynamically if the configuration says so.

        Args:
            gen_batch: Prompts of a data set; may be empty, since environments have their own tasks. Its ``meta_info``
                is passed to the actor with every batch, its ``env_kwargs`` to the environments' reset.
            actor_rollout_wg: Has ``generate_sequences(DataProto) -> DataProto``; a verl worker group, or one of this
                project's actors.
            envs: A manager.
            is_train: Whether ``gen_batch`` is repeated for each member of a group.

        Returns:
            A row for each turn, as :meth:`gather_rollout_data` makes them.

        Raises:
            InputError: The number of rows in ``gen_batch`` does not match the environments.
            BackendError: The actor answered too few prompts.
            CollectError: There is no row, or too few groups had differing rewards.
        """
        gen_batch, self.played = self._repeated(gen_batch, envs, is_train), []
        dynamic = is_train and self.settings.filters_groups
        loop = self.dynamic_multi_turn_loop if dynamic else self.vanilla_multi_turn_loop
        found = loop(gen_batch, actor_rollout_wg, envs)
        if not is_train:  # a group without a signal can still be judged
            for row in (row for rows in found.batch_list for row in rows):
                row["has_signal"] = is_valid(row)
        return self.gather_rollout_data(*found, meta_info=gen_batch.meta_info)

    def vanilla_multi_turn_loop(self, gen_batch: DataProto, actor_rollout_wg: Any, envs: Any) -> Collected:
        """Play one episode in every environment.

        Args:
            gen_batch: See :meth:`multi_turn_loop`.
            actor_rollout_wg: See :meth:`multi_turn_loop`.
            envs: See :meth:`multi_turn_loop`.
        """
        obs, infos = envs.reset(gen_batch.non_tensor_batch.get("env_kwargs"))
        play = _Play.begun(infos, self._group_n(envs))
        self.failures = {row: play.errors[row] for row in play.errors}
        for turn in range(self.settings.max_steps or 0):
            active = play.active()
            if not active:
                break
            asked = active if getattr(envs, "skips_none", False) else list(range(len(play.done)))
            answers, batch = self._answered(gen_batch, actor_rollout_wg, envs, obs, asked, turn)
            texts, rows = self._texts(play, asked, answers)
            obs, rewards, dones, infos = envs.step(texts)
            play.take(rows, to_list_of_dict(batch), rewards, dones, infos)
        self.failures.update(play.errors)
        found = play.collected(envs, self.settings.failed_trajectories)
        tags = list(getattr(envs, "tags", ["default"] * len(found.batch_list)))
        self.played += [_judged(found, place, tag, play.env_errors.get(place)) for place, tag in enumerate(tags)]
        return found

    def dynamic_multi_turn_loop(self, gen_batch: DataProto, actor_rollout_wg: Any, envs: Any) -> Collected:
        """Repeat rollouts until enough groups have differing rewards; see :class:`CollectorSettings`.

        Raises:
            CollectError: There were too few after the last try, and ``on_exhausted`` is ``raise``.
            EnvsFailedError: A rollout gave no signal at all, and more than half of all trajectories had failed.
        """
        settings, size = self.settings, self._group_n(envs)
        wanted = (settings.train_groups or len(envs) // size) * size
        found: Collected | None = None
        tries = range(1, settings.max_num_gen_batches + 1) if settings.max_num_gen_batches else count(1)
        for number in tries:
            last = number == settings.max_num_gen_batches and settings.on_exhausted == "keep"
            played = self.vanilla_multi_turn_loop(gen_batch, actor_rollout_wg, envs)
            if not any(map(_has_signal, played.batch_list)):  # with a service that is down, this would never end
                check_share([env_error(each) for each in self.played])
            kept = filter_group_data(*played, last_try=last, group_n=size)
            found = kept if found is None else found + kept
            if len(found.batch_list) >= wanted or last:
                return found
        raise CollectError(
            f"{settings.max_num_gen_batches} rollouts gave {len(found.batch_list) if found else 0} of {wanted} "
            "trajectories in groups with differing rewards; raise algorithm.filter_groups.max_num_gen_batches, make "
            "the environments easier or harder, or set algorithm.filter_groups.on_exhausted to 'keep'."
        )

    def gather_rollout_data(
        self,
        total_batch_list: Sequence[Sequence[Mapping[str, Any]]],
        episode_rewards: np.ndarray,
        episode_lengths: np.ndarray,
        success: Mapping[str, np.ndarray],
        traj_uid: np.ndarray,
        tool_callings: np.ndarray,
        meta_info: Mapping[str, Any] | None = None,
    ) -> DataProto:
        """One row per turn, trajectory after trajectory, of those that are learned from.

        Returns:
            Tensors: ``prompts``, ``responses``, ``input_ids``, ``attention_mask``, ``position_ids``, and
            log-probabilities where the actor has them. Objects: ``uid`` (of the group), ``traj_uid``, ``anchor_obs``,
            ``index``, ``data_source``, ``is_action_valid``, ``rewards`` (of the turn), ``active_masks`` (all True),
            ``episode_rewards``, ``episode_lengths``, ``tool_callings``, ``env_ids``, ``episode_success`` (of the row's
            own trajectory, NaN without a reply); and on every row the mean of each kind of success, and mean, min and
            max of ``episode_rewards`` and ``episode_lengths``, over the trajectories whose environment did not fail.

        Raises:
            CollectError: There is no row at all.
        """
        learned = [(place, each) for place, each in enumerate(total_batch_list) if _has_signal(each)]
        rows = [(place, row) for place, each in learned for row in each if row["active_masks"]]
        if not rows:
            why = next(iter(self.failures.values()), "no environment was played")
            raise CollectError(f"there is no row to train on: {why}.")
        names = [name for name in (*TENSORS, *OPTIONAL_TENSORS) if all(name in row for _, row in rows)]
        tensors = stacked([{name: row[name] for name in names} for _, row in rows], self._encoder.pad_id)
        extra = [name for name in ("env_ids", "multi_modal_inputs") if name in rows[0][1]]
        objects = {name: object_array(row[name] for _, row in rows) for name in (*COLUMNS, *extra)}
        whole = {"episode_rewards": episode_rewards, "episode_lengths": episode_lengths, "tool_callings": tool_callings}
        objects |= {name: np.array([values[place] for place, _ in rows]) for name, values in whole.items()}
        objects["traj_uid"] = object_array(traj_uid[place] for place, _ in rows)
        if "success_rate" in success:
            objects["episode_success"] = np.array([success["success_rate"][place] for place, _ in rows])
        known = {name: values[~np.isnan(values)] for name, values in success.items()}
        means = {name: values.mean() if len(values) else 0.0 for name, values in known.items()}
        for name, values in (("episode_rewards", episode_rewards), ("episode_lengths", episode_lengths)):
            values = values[[place for place, each in enumerate(total_batch_list) if each and is_valid(each[0])]]
            means |= {f"{name}_mean": values.mean(), f"{name}_min": values.min(), f"{name}_max": values.max()}
        objects |= {name: np.full(len(rows), value) for name, value in means.items()}
        return data_proto(tensors, objects, dict(meta_info or {}))

    # One turn

    def _answered(
        self, gen_batch: DataProto, actor: Any, envs: Any, obs: Any, rows: Sequence[int], turn: int
    ) -> tuple[Answers, DataProto]:
        prompts = self.preprocess_batch(gen_batch, obs, rows)
        tags, size = list(getattr(envs, "tags", ["default"] * len(obs["text"]))), self._group_n(envs)
        prompts.non_tensor_batch |= {
            "tags": object_array(tags[row] for row in rows),
            "turns": object_array(turn for _ in rows),
            "group_ids": object_array(row // size for row in rows),
        }
        prompts.meta_info |= gen_batch.meta_info
        answers = read_answers(prompts, ask(actor, prompts), self.tokenizer, self._encoder.pad_id)
        if len(answers.texts) != len(rows):
            raise BackendError(f"the actor answered {len(answers.texts)} of {len(rows)} prompts.")
        return answers, data_proto(answers.tensors, dict(prompts.non_tensor_batch), {})

    def _texts(self, play: _Play, asked: Sequence[int], answers: Answers) -> tuple[list[str | None], list[int]]:
        """Each environment's text, and each row's environment, -1 if it has no reply or is over."""
        texts: list[str | None] = [None] * len(play.done)
        rows: list[int] = []
        told = zip(asked, answers.texts, answers.errors, answers.out_of_context, strict=True)
        for row, text, error, full in told:
            if full is not None:
                play.done[row] = True
            elif error is None:
                texts[row] = text
            elif not play.done[row]:
                play.fail(row, error)
            rows.append(-1 if play.done[row] else row)
        return texts, rows

    # Sizes

    def _group_n(self, envs: Any) -> int:
        return getattr(envs, "group_n", None) or self.settings.group_n or 1

    def _repeated(self, gen_batch: DataProto, envs: Any, is_train: bool) -> DataProto:
        """The batch with a row for each environment, if it has rows."""
        has_rows = gen_batch.batch is not None or bool(gen_batch.non_tensor_batch)
        if not has_rows or not hasattr(envs, "__len__"):
            return gen_batch
        size = self._group_n(envs)
        repeated = gen_batch.repeat(size, interleave=True) if is_train and len(gen_batch) != len(envs) else gen_batch
        if len(repeated) != len(envs):
            raise InputError(
                f"{len(gen_batch)} prompts{f' in groups of {size}' if is_train else ''} were given for {len(envs)} "
                "environments; expected one for each group in training, or one for each environment."
            )
        return repeated


@dataclass
class _Play:
    """A rollout in progress; every list has one value for each environment."""

    done: list[bool]
    uid: list[str]
    traj_uid: np.ndarray
    rewards: np.ndarray
    lengths: np.ndarray
    tools: np.ndarray
    rows: list[list[dict[str, Any]]]
    infos: list[list[Any]]
    errors: dict[int, str] = field(default_factory=dict)
    env_errors: dict[int, str] = field(default_factory=dict)

    @classmethod
    def begun(cls, infos: Sequence[Any], group_n: int) -> _Play:
        """The beginning of a rollout; environments that failed at their reset are over."""
        size = len(infos)
        groups = [str(uuid.uuid4()) for _ in range(-(-size // group_n))]
        names = object_array(str(uuid.uuid4()) for _ in range(size))
        rewards, lengths, tools = (np.zeros(size, np.float32) for _ in range(3))
        uids = [groups[row // group_n] for row in range(size)]
        sums = rewards, lengths, tools
        play = cls([False] * size, uids, names, *sums, [[] for _ in infos], [[] for _ in infos])
        play._note_failures(infos)
        return play

    def active(self) -> list[int]:
        return [row for row, over in enumerate(self.done) if not over]

    def fail(self, row: int, why: str) -> None:
        self.done[row], self.errors[row] = True, why

    def take(
        self, rows: Sequence[int], batch: Sequence[dict[str, Any]], rewards: Any, dones: Any, infos: Sequence[Any]
    ) -> None:
        """Record a turn; rewards count only for environments that were active before."""
        for row, columns in zip(rows, batch, strict=True):
            if row < 0:
                continue
            info, reward = infos[row], float(rewards[row])
            columns |= {"uid": self.uid[row], "traj_uid": self.traj_uid[row], "rewards": reward, "active_masks": True}
            columns["is_action_valid"] = bool(np.asarray(info.get("is_action_valid", True)))
            self.rows[row].append(columns)
            self.infos[row].append(info)
            self.rewards[row] += reward
            self.lengths[row] += 1
            self.tools[row] += float(info.get("tool_calling", 0))
            self.done[row] = bool(dones[row])
        self._note_failures(infos)

    def _note_failures(self, infos: Sequence[Any]) -> None:
        for row, info in enumerate(infos):
            error = env_error(info) if isinstance(info, Mapping) else None
            if error is not None:
                self.fail(row, error)
                self.env_errors[row] = error

    def collected(self, envs: Any, policy: str) -> Collected:
        """The collected trajectories; the success of an environment that failed is unknown: NaN.

        Args:
            envs: The manager.
            policy: See :func:`ragen.validity.with_signal`.
        """
        errors = [self.env_errors.get(place) for place in range(len(self.done))]
        for rows, error, learned in zip(self.rows, errors, with_signal(self.uid, errors, policy), strict=True):
            for row in rows:
                row |= {ENV_ERROR: error, "has_signal": bool(learned)}
        success = envs.success_evaluator(
            total_infos=self.infos,
            total_batch_list=self.rows,
            episode_rewards=self.rewards,
            episode_lengths=self.lengths,
        )
        success = {name: np.array(values, float) for name, values in success.items()}
        for values in success.values():
            values[list(self.errors)] = np.nan
        return Collected(self.rows, self.rewards, self.lengths, success, self.traj_uid, self.tools)
