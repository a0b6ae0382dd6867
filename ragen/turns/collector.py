"""Collects trajectories, a row of tokens for each turn, from a manager of environments and an actor.

    reset -> [ prompts of the active -> actor -> texts -> step ] x max_steps -> rows, in the order of trajectories
             |------------------------ vanilla -----------------------|
    |-------------------- dynamic: again, until enough groups have differing rewards ----------------------------|

The batch is verl-agent's: the rows of a trajectory in the order of its turns, each with the whole trajectory's reward.
Only environments whose episode goes on are prompted. A trajectory that :mod:`ragen.validity` excludes has no rows in
it, since a trainer makes its own masks and means of what the batch has.

Prompts are chats of one message. A row keeps the prompt's tokens and the reply's, as the actor returns them; tensors
are made once, of all rows.
"""

from __future__ import annotations

import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import count as count_from
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from ragen.config.loading import as_config
from ragen.errors import BackendError, CollectError, InputError
from ragen.llm_agent.backends.batch import exchange_of, replies_of
from ragen.llm_agent.backends.verl import VerlBackend, is_worker_group
from ragen.llm_agent.batches.dataproto import (
    Exchange,
    data_proto,
    image_objects,
    object_array,
    pad_id,
    right_padded,
    token_tensors,
)
from ragen.llm_agent.batches.encoding import ChatEncoder, EncodedChat, ReplyMarker
from ragen.llm_agent.prompts.chat_template import ChatTemplate
from ragen.llm_agent.prompts.replies import ControlTokens
from ragen.llm_agent.prompts.settings import ContextSettings
from ragen.turns.prompts import step_message
from ragen.validity import ENV_ERROR, MASK, check_share, env_error, with_signal

if TYPE_CHECKING:
    from verl import DataProto

TRUNCATIONS = ("error", "left", "right", "middle")
ON_EXHAUSTED = ("keep", "raise")
MAX_PROMPT = "data.max_prompt_length"
FILTER = "algorithm.filter_groups"
_SUMS = ("episode_rewards", "episode_lengths", "tool_callings")
_KEPT = ("anchor_obs", "index", "data_source", "env_ids", "multi_modal_inputs")
Rows = list[list[dict[str, Any]]]


@dataclass(frozen=True)
class CollectorSettings:
    """The settings of collectors.

    Attributes:
        max_steps: Maximum number of turns: ``env.max_steps``, else ``agent_proxy.max_turn``.
        group_n: Trajectories per group in training: ``env.rollout.n``, else ``es_manager.train.group_size``.
        train_groups: Groups per training batch: ``data.train_batch_size``, else ``es_manager.train.env_groups``.
        prompt_width: Tokens of every prompt including padding: ``data.max_prompt_length``; None for the longest prompt.
        prompt_limit: Maximum number of tokens of a prompt: the width, else the model's context without a reply.
        truncation: The treatment of longer prompts, ``data.truncation``: ``error``, or truncation on the ``left``,
            ``right`` or in the ``middle``.
        filters_groups: Whether training uses only groups whose rewards differ: ``algorithm.filter_groups.enable``.
        max_num_gen_batches: Maximum number of tries, ``algorithm.filter_groups.max_num_gen_batches``; 0 for no limit.
        on_exhausted: After the last try, ``algorithm.filter_groups.on_exhausted``: keep it whole (``keep``), or raise
            an error (``raise``).
        failed_trajectories: The part not learned from if an environment failed; see :mod:`ragen.validity`.
    """

    max_steps: int
    group_n: int | None = None
    train_groups: int | None = None
    prompt_width: int | None = None
    prompt_limit: int | None = None
    truncation: str = "error"
    filters_groups: bool = False
    max_num_gen_batches: int = 10
    on_exhausted: str = "keep"
    failed_trajectories: str = MASK

    @classmethod
    def read(cls, config: Any) -> CollectorSettings:
        """Read and check the keys.

        Raises:
            ConfigError: A key has an invalid value.
        """
        whole = as_config(config)
        train, filters = whole.es_manager.train, whole.algorithm.filter_groups
        tries, width = filters.max_num_gen_batches, whole.data.max_prompt_length
        return cls(
            max_steps=whole.env.max_steps or whole.agent_proxy.max_turn,
            group_n=whole.select("env.rollout.n") or (train and train.group_size),
            train_groups=whole.data.train_batch_size or (train and train.env_groups),
            prompt_width=width,
            prompt_limit=width or ContextSettings.read(whole).prompt_limit,
            truncation=whole.data.truncation,
            filters_groups=filters.enable,
            max_num_gen_batches=10 if tries is None else tries,
            on_exhausted=filters.on_exhausted,
            failed_trajectories=whole.es_manager.failed_trajectories,
        )


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


@dataclass
class Trajectory:
    """One environment's episode.

    Attributes:
        env_id: The index of its environment.
        tag: The environment's tag.
        uid: The unique name of its group.
        traj_uid: Its own.
        rows: A mapping for each turn: ``chat`` (the prompt's tokens), ``exchange``, and columns of the batch.
        infos: The info of each turn.
        done: Whether it is over.
        error: The reason that it got no reply, or its environment's failure.
        env_error: Its environment's failure.
        has_signal: Whether it is learned from.
        success: The kinds of success; NaN if it has an error.
    """

    env_id: int
    tag: str
    uid: str
    traj_uid: str = field(default_factory=lambda: str(uuid.uuid4()))
    rows: list[dict[str, Any]] = field(default_factory=list)
    infos: list[Any] = field(default_factory=list)
    done: bool = False
    error: str | None = None
    env_error: str | None = None
    has_signal: bool = True
    success: dict[str, float] = field(default_factory=dict)

    @property
    def reward(self) -> float:
        """The sum of its rewards."""
        return float(np.sum([row["rewards"] for row in self.rows], dtype=np.float32))

    @property
    def columns(self) -> dict[str, Any]:
        """Its columns, the same in each of its rows."""
        sums = self.reward, len(self.rows), sum(float(info.get("tool_calling", 0)) for info in self.infos)
        names = {
            "uid": self.uid,
            "traj_uid": self.traj_uid,
            "episode_success": self.success.get("success_rate", np.nan),
        }
        return names | dict(zip(_SUMS, sums, strict=True))

    def see(self, info: Any) -> None:
        """End the episode if the environment has failed."""
        if isinstance(info, Mapping) and (error := env_error(info)) is not None:
            self.done, self.error, self.env_error = True, error, error

    @property
    def judged(self) -> dict[str, Any]:
        """The trajectory as metrics see it."""
        metrics = {"num_actions": float(len(self.rows)), "reward": self.reward}
        if self.error is None and "success_rate" in self.success:
            metrics["success"] = self.success["success_rate"]
        metrics = {f"{self.tag}/{name}": value for name, value in metrics.items()}
        return {"tag": self.tag, ENV_ERROR: self.env_error, "metrics": metrics}


def to_list_of_dict(batch: DataProto) -> list[dict[str, Any]]:
    """The rows of a batch, each with its tensors and objects by name."""
    columns = {**(dict(batch.batch.items()) if batch.batch is not None else {}), **batch.non_tensor_batch}
    return [{name: column[row] for name, column in columns.items()} for row in range(len(batch))]


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
    size = group_n or CollectorSettings.read(config or {}).group_n
    signal = [bool(rows) and all(row.get("has_signal", True) for row in rows) for rows in batch_list]
    kept = list(range(len(batch_list))) if last_try else _differing(episode_rewards, signal, size)
    sums = episode_rewards[kept], episode_lengths[kept]
    known = {name: values[kept] for name, values in success.items()}
    return Collected([batch_list[place] for place in kept], *sums, known, traj_uid[kept], tool_callings[kept])


def _differing(rewards: Sequence[float], signal: Sequence[bool], size: int | None) -> list[int]:
    """The members of the groups in which rewards differ by more than rounding among those with a signal."""
    if size is None or len(rewards) % size:
        raise InputError(f"{len(rewards)} trajectories are no whole groups of {size} (group_n, or env.rollout.n).")
    groups = [range(start, start + size) for start in range(0, len(rewards), size)]
    counted = [[rewards[place] for place in group if signal[place]] for group in groups]
    return [i for group, some in zip(groups, counted, strict=True) if not np.allclose(some, some[:1]) for i in group]


class TrajectoryCollector:
    """Collects rollouts.

    Attributes:
        config: The whole configuration.
        settings: Its settings for collectors.
        tokenizer: The actor's tokenizer.
        failures: The reason that an environment got no reply or could not continue in the last rollout, by index.
        played: All trajectories of the last call of :meth:`multi_turn_loop`, also those that are not in its batch:
            mappings with ``tag``, ``env_error`` and ``metrics``, see :mod:`ragen.llm_agent.batches.metrics`.
    """

    def __init__(self, config: Any, tokenizer: Any, processor: Any = None) -> None:
        """Read the configuration and test the chat template.

        Args:
            config: See :class:`CollectorSettings`.
            tokenizer: A fast tokenizer with a chat template.
            processor: Processes images; None leaves placeholders in their places.

        Raises:
            ConfigError: A key is missing or has an invalid value, or there is no chat template.
        """
        self.config, self.tokenizer, self.processor = config, tokenizer, processor
        self.settings = CollectorSettings.read(config)
        self.failures: dict[int, str] = {}
        self.played: list[dict[str, Any]] = []
        self._pad, self._control = pad_id(tokenizer), ControlTokens.of(tokenizer)
        template = ChatTemplate(tokenizer, processor)
        marker = ReplyMarker(template, self._control, tokenizer.eos_token)
        self._encoder = ChatEncoder(tokenizer, template, marker, processor)

    # Prompts

    def preprocess_batch(
        self, gen_batch: DataProto, obs: Mapping[str, Any], rows: Sequence[int] | None = None
    ) -> DataProto:
        """A manager's prompts as a batch for the actor.

        Args:
            gen_batch: Its columns ``index`` and ``data_source`` are copied if it has a row for each environment.
            obs: The manager's observations: ``text``, ``image``, ``anchor``.
            rows: Indices of the environments to prompt; all by default.

        Returns:
            ``input_ids``, ``attention_mask``, ``position_ids``; and ``raw_prompt_ids`` (without padding),
            ``raw_prompt`` and ``messages_list`` (the chat), ``anchor_obs``, ``index``, ``data_source``, ``env_ids``.

        Raises:
            InputError: A prompt is too long, and ``data.truncation`` is ``error``.
        """
        return self._prompts(gen_batch, obs, range(len(obs["text"])) if rows is None else rows)[0]

    def _prompts(self, gen_batch: DataProto, obs: Any, rows: Sequence[int]) -> tuple[DataProto, list[EncodedChat]]:
        size, has_items = len(obs["text"]), self.processor is not None
        images, anchors = ([None] * size if obs.get(name) is None else obs[name] for name in ("image", "anchor"))
        chats = [[step_message(obs["text"][row], images[row], self._control, has_items)] for row in rows]
        encoded = [self._fitted(*each) for each in zip(self._encoder.prompts(chats, ""), rows, strict=True)]
        columns: dict[str, Any] = {"index": range(size), "data_source": ["default"] * size}
        given = {name: gen_batch.non_tensor_batch.get(name, ()) for name in columns}
        columns |= {name: each for name, each in given.items() if len(each) == size}
        columns |= {"anchor_obs": anchors, "env_ids": range(size)}
        objects = {name: object_array(each[row] for row in rows) for name, each in columns.items()}
        objects |= {name: object_array(chats) for name in ("raw_prompt", "messages_list")}
        objects["raw_prompt_ids"] = object_array(list(chat.ids) for chat in encoded)
        objects |= image_objects(encoded) if has_items else {}
        return data_proto(self._prompt_tensors(encoded), objects, {}), encoded

    def _fitted(self, chat: EncodedChat, row: int) -> EncodedChat:
        limit, length, truncation = self.settings.prompt_limit, len(chat.ids), self.settings.truncation
        if limit is None or length <= limit:
            return chat
        if truncation == "error" or chat.images:
            raise InputError(
                f"the prompt of env {row} has {length} tokens, and there is room for {limit} ({MAX_PROMPT}, or what "
                "the model's context leaves); raise it, show less history, or set data.truncation to left, right or "
                "middle."
            )
        begin = {"left": 0, "right": limit, "middle": limit // 2}[truncation]
        return replace(chat, ids=chat.ids[:begin] + chat.ids[length - (limit - begin) :])

    def _prompt_tensors(self, encoded: Sequence[EncodedChat]) -> dict[str, Any]:
        from torch.nn.functional import pad

        tensors = token_tensors(encoded, self._pad, self.processor)
        missing = max(0, (self.settings.prompt_width or 0) - tensors["input_ids"].shape[-1])
        fill = {"input_ids": self._pad, "attention_mask": 0, "position_ids": 0}
        return {name: pad(tensors[name], (missing, 0), value=value) for name, value in fill.items()}

    # Rollouts

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
            One row per turn, trajectory after trajectory, of those that are learned from. Tensors: ``prompts``,
            ``responses``, ``input_ids``, ``attention_mask``, ``position_ids``, and ``rollout_log_probs`` where the
            actor has them. Objects: ``uid`` (of the group), ``traj_uid``, ``anchor_obs``, ``index``, ``data_source``,
            ``is_action_valid``, ``rewards`` (of the turn), ``active_masks`` (all True), ``episode_rewards``,
            ``episode_lengths``, ``tool_callings``, ``env_ids``, ``episode_success`` (of the row's own trajectory, NaN
            without a reply); and on every row the mean of each kind of success, and mean, min and max of
            ``episode_rewards`` and ``episode_lengths``, over the trajectories whose environment did not fail.

        Raises:
            InputError: The number of rows in ``gen_batch`` does not match the environments.
            BackendError: The actor answered too few prompts.
            CollectError: There is no row, or too few groups had differing rewards.
        """
        found = self.collect(gen_batch, actor_rollout_wg, envs, is_train)
        rows = [row for each in found if each.has_signal for row in each.rows]
        return data_proto(self._tensors(rows), self.columns(found), dict(gen_batch.meta_info))

    def collect(self, gen_batch: DataProto, actor: Any, envs: Any, is_train: bool = True) -> list[Trajectory]:
        """The trajectories of :meth:`multi_turn_loop`; at least one of them is learned from."""
        gen_batch, self.played = self._repeated(gen_batch, envs, is_train), []
        actor = VerlBackend(actor, self.tokenizer) if is_worker_group(actor) else actor
        dynamic = is_train and self.settings.filters_groups
        found = (self.dynamic_multi_turn_loop if dynamic else self.vanilla_multi_turn_loop)(gen_batch, actor, envs)
        for each in found:  # a group without a signal can still be judged
            each.has_signal = bool(each.rows) and (each.has_signal if is_train else each.env_error is None)
        if not any(each.has_signal for each in found):
            why = next(iter(self.failures.values()), "no environment was played")
            raise CollectError(f"there is no row to train on: {why}.")
        return found

    def vanilla_multi_turn_loop(self, gen_batch: DataProto, actor_rollout_wg: Any, envs: Any) -> list[Trajectory]:
        """Play one episode in every environment; see :meth:`multi_turn_loop`."""
        obs, infos = envs.reset(gen_batch.non_tensor_batch.get("env_kwargs"))
        size, group_n = len(infos), self._group_n(envs)
        tags, groups = getattr(envs, "tags", ["default"] * size), [str(uuid.uuid4()) for _ in infos]
        found = [Trajectory(row, tags[row], groups[row // group_n]) for row in range(size)]
        for turn in range(self.settings.max_steps):
            for each, info in zip(found, infos, strict=True):
                each.see(info)
            active = [each for each in found if not each.done]
            if not active:
                break
            prompts, encoded = self._prompts(gen_batch, obs, [each.env_id for each in active])
            prompts.meta_info |= gen_batch.meta_info
            prompts.non_tensor_batch["tags"] = object_array(each.tag for each in active)
            prompts.non_tensor_batch["turns"] = object_array(turn for _ in active)
            prompts.non_tensor_batch["group_ids"] = object_array(each.env_id // group_n for each in active)
            replies = self._replies(active, encoded, actor_rollout_wg.generate_sequences(prompts))
            obs, rewards, dones, infos = envs.step([replies.get(row, (None,))[0] for row in range(size)])
            for place, each in enumerate(active):
                if each.env_id in replies:
                    info = infos[each.env_id]
                    kept = {name: prompts.non_tensor_batch.get(name, [None] * size)[place] for name in _KEPT}
                    kept |= {"chat": encoded[place], "exchange": replies[each.env_id][1]}
                    kept["rewards"] = float(rewards[each.env_id])
                    kept["is_action_valid"] = bool(np.asarray(info.get("is_action_valid", True)))
                    each.rows.append(kept | {"active_masks": True})
                    each.infos.append(info)
                    each.done = bool(dones[each.env_id])
        for each, info in zip(found, infos, strict=True):
            each.see(info)
        self._judge(found, envs)
        return found

    def _replies(
        self, active: Sequence[Trajectory], encoded: Sequence[EncodedChat], output: DataProto
    ) -> dict[int, tuple[str, Exchange]]:
        """Each reply and its tokens, those of its text if the actor knows none; episodes without a reply are over."""
        replies = replies_of(output, self.tokenizer)
        if len(replies) != len(active):
            raise BackendError(f"the actor answered {len(replies)} of {len(active)} prompts.")
        found = {}
        for each, chat, reply in zip(active, encoded, replies, strict=True):
            if reply.is_answer:
                exchange = exchange_of((), chat.ids, reply)
                if not exchange.has_tokens:
                    ids = self.tokenizer([reply.text], add_special_tokens=False)["input_ids"][0]
                    exchange = Exchange((), chat.ids, [*ids, self.tokenizer.eos_token_id])
                found[each.env_id] = reply.text, exchange
            else:
                each.done, each.error = True, reply.error if reply.out_of_context is None else None
        return found

    def _judge(self, found: Sequence[Trajectory], envs: Any) -> None:
        """Set each trajectory's success, and whether it has a signal."""
        success = envs.success_evaluator(
            total_infos=[each.infos for each in found],
            total_batch_list=[each.rows for each in found],
            episode_rewards=np.array([each.reward for each in found], np.float32),
            episode_lengths=np.array([len(each.rows) for each in found], np.float32),
        )
        errors = [each.env_error for each in found]
        signal = with_signal([each.uid for each in found], errors, self.settings.failed_trajectories)
        for place, each in enumerate(found):
            each.success = {
                name: float(values[place]) if each.error is None else np.nan for name, values in success.items()
            }
            each.has_signal = bool(each.rows) and bool(signal[place])
        self.failures = {each.env_id: each.error for each in found if each.error is not None}
        self.played += [each.judged for each in found]

    def dynamic_multi_turn_loop(self, gen_batch: DataProto, actor_rollout_wg: Any, envs: Any) -> list[Trajectory]:
        """Repeat rollouts until enough groups have differing rewards; see :class:`CollectorSettings`.

        Raises:
            CollectError: There were too few after the last try, and ``on_exhausted`` is ``raise``.
            EnvsFailedError: A rollout gave no signal at all, and more than half of all trajectories had failed.
        """
        most, size, found = self.settings.max_num_gen_batches, self._group_n(envs), list[Trajectory]()
        wanted = (self.settings.train_groups or len(envs) // size) * size
        for number in range(1, most + 1) if most else count_from(1):
            played = self.vanilla_multi_turn_loop(gen_batch, actor_rollout_wg, envs)
            signal = [each.has_signal for each in played]
            if not any(signal):  # with a service that is down, this would never end
                check_share([each[ENV_ERROR] for each in self.played])
            last = number == most and self.settings.on_exhausted == "keep"
            kept = range(len(played)) if last else _differing([each.reward for each in played], signal, size)
            found += [played[place] for place in kept]
            if len(found) >= wanted or last:
                return found
        raise CollectError(
            f"{most} rollouts gave {len(found)} of {wanted} trajectories in groups with differing rewards; raise "
            f"{FILTER}.max_num_gen_batches, make the environments easier or harder, or set {FILTER}.on_exhausted to "
            "'keep'."
        )

    # Batches

    def columns(self, found: Sequence[Trajectory]) -> dict[str, np.ndarray]:
        """The objects of :meth:`multi_turn_loop`."""
        rows = [row | each.columns for each in found if each.has_signal for row in each.rows]
        names = [name for name in rows[0] if name not in ("chat", "exchange")]
        objects = {name: object_array(row[name] for row in rows) for name in names}
        objects |= {name: objects[name].astype(np.float32) for name in _SUMS}
        objects["episode_success"] = objects["episode_success"].astype(float)
        known = {name: [each.success[name] for each in found if each.error is None] for name in found[0].success}
        means = {name: np.mean(values) if values else 0.0 for name, values in known.items()}
        valid = [each.columns for each in found if each.rows and each.env_error is None]
        for name in _SUMS[:2]:
            values = np.array([each[name] for each in valid], np.float32)
            means |= {f"{name}_mean": values.mean(), f"{name}_min": values.min(), f"{name}_max": values.max()}
        return objects | {name: np.full(len(rows), value) for name, value in means.items()}

    def _tensors(self, rows: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
        """Prompts padded on the left, replies on the right, and both together."""
        import torch

        prompts = self._prompt_tensors([row["chat"] for row in rows])
        replies = [list(row["exchange"].reply_ids) for row in rows]
        responses, mask = right_padded(replies, self._pad), right_padded([[1] * len(each) for each in replies], 0)
        positions = prompts["position_ids"]
        following = positions[..., -1:] + torch.arange(1, mask.shape[-1] + 1)
        log_probs = [row["exchange"].log_probs for row in rows]
        known = {} if None in log_probs else {"rollout_log_probs": right_padded(list(map(list, log_probs)), 0.0)}
        return known | {
            "prompts": prompts["input_ids"],
            "responses": responses,
            "input_ids": torch.cat([prompts["input_ids"], responses], -1),
            "attention_mask": torch.cat([prompts["attention_mask"], mask], -1),
            "position_ids": torch.cat([positions, following], -1),
        }

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
