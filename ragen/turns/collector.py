"""Collects trajectories, a row of tokens for each turn, from a manager of environments and an actor.

    reset -> [ prompts of the active -> actor -> texts -> step ] x max_steps -> rows, in the order of trajectories
             |------------------------ vanilla -----------------------|
    |-------------------- dynamic: again, until enough groups have differing rewards ----------------------------|

A trajectory is a rollout cache, as of ``EnvStateManager``, and the batch is a training batch of ``ContextManager`` in
verl-agent's layout: prompts end in one column, and the rows of a trajectory are in the order of its turns. Only
environments whose episode goes on are prompted. A trajectory that :mod:`ragen.validity` excludes has no rows in the
batch, since a trainer makes its own masks and means of what the batch has.
"""

from __future__ import annotations

import uuid
from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import count as count_from
from typing import TYPE_CHECKING, Any

import numpy as np

from ragen.config.loading import as_config
from ragen.errors import BackendError, CollectError, InputError
from ragen.llm_agent.backends.base import Reply
from ragen.llm_agent.backends.batch import replies_of
from ragen.llm_agent.backends.verl import VerlActor, is_worker_group
from ragen.llm_agent.batches.builder import BatchBuilder
from ragen.llm_agent.batches.dataproto import (
    Layout,
    data_proto,
    object_array,
)
from ragen.llm_agent.batches.encoding import ChatEncoder, EncodedChat
from ragen.llm_agent.batches.metrics import mean_metrics
from ragen.llm_agent.batches.training_rows import TrainingRow, signal_of, total_reward
from ragen.llm_agent.prompts.conversation import Row, items_of
from ragen.llm_agent.prompts.replies import ControlTokens
from ragen.llm_agent.prompts.settings import LIMITED, ContextSettings
from ragen.validity import check_share, env_error

if TYPE_CHECKING:
    from verl import DataProto

MAX_PROMPT = "data.max_prompt_length"
FILTER = "algorithm.filter_groups"
_SUMS = ("episode_rewards", "episode_lengths", "tool_callings")
MAX_TRIES = 10  # verl-agent's default
Cache = dict[str, Any]
"""A rollout cache with the names ``uid`` and ``traj_uid``, and ``success`` by kind; ``error`` is the reason that it got
no reply, or its environment's failure. Turns also have their tokens."""


def to_list_of_dict(batch: DataProto) -> list[dict[str, Any]]:
    """The rows of a batch, each with its tensors and objects by name."""
    columns = {**(dict(batch.batch.items()) if batch.batch is not None else {}), **batch.non_tensor_batch}
    return [dict(zip(columns, values, strict=True)) for values in zip(*columns.values(), strict=True)]


def filter_group_data(
    batch_list: Sequence[Any],
    episode_rewards: np.ndarray,
    episode_lengths: np.ndarray,
    success: dict[str, np.ndarray],
    traj_uid: np.ndarray,
    tool_callings: np.ndarray,
    config: Any = None,
    last_try: bool = False,
    *,
    group_n: int | None = None,
) -> tuple[Any, ...]:
    """Drop the groups that give no learning signal: those whose rewards differ by no more than rounding.

    Args:
        batch_list: The rows of each trajectory, in the order of its turns; members of a group are adjacent.
        episode_rewards: Sums of rewards; NaN for trajectories that failed, which do not count.
        episode_lengths: Turns.
        success: Arrays by name, such as ``success_rate``.
        traj_uid: Unique names.
        tool_callings: Sums of ``info["tool_calling"]``.
        config: The whole configuration, which has the group size if ``group_n`` is omitted.
        last_try: Keep everything, since there is no further try.
        group_n: Members per group.

    Returns:
        The first six arguments, of the groups that stay.

    Raises:
        InputError: The trajectories are not whole groups, or the size of groups is unknown.
    """
    size, count = group_n or _group_size(config or {}), len(batch_list)
    if not last_try and (size is None or count % size):
        raise InputError(f"{count} trajectories are no whole groups of {size} (group_n, or env.rollout.n).")
    groups = np.reshape(episode_rewards, (-1, 1 if last_try else size or 1))
    known = [group[~np.isnan(group)] for group in groups]
    stays = [last_try or not np.allclose(some, some[:1]) for some in known]
    kept = np.flatnonzero(np.repeat(stays, groups.shape[1]))
    left = {name: values[kept] for name, values in success.items()}
    sums = episode_rewards[kept], episode_lengths[kept]
    return [batch_list[int(place)] for place in kept], *sums, left, traj_uid[kept], tool_callings[kept]


def _group_size(config: Any) -> int | None:
    whole = as_config(config)
    train = whole.es_manager.train
    return whole.select("env.rollout.n") or (None if train is None else train.group_size)


class TrajectoryCollector:
    """Collects rollouts.

    Attributes:
        config: The whole configuration. Read are ``env.max_steps``, else ``agent_proxy.max_turn`` (turns);
            ``env.rollout.n``, else ``es_manager.train.group_size``; ``data.train_batch_size``, else
            ``es_manager.train.env_groups`` (groups per training batch); ``data.max_prompt_length`` and
            ``data.truncation``; ``algorithm.filter_groups``.
        tokenizer: The actor's tokenizer.
        played: The rollout caches of all trajectories of the last call of :meth:`multi_turn_loop`, also of those that
            are not in its batch.
    """

    def __init__(self, config: Any, tokenizer: Any, processor: Any = None) -> None:
        """Read the configuration and test the chat template.

        Args:
            config: See the attribute.
            tokenizer: A fast tokenizer with a chat template.
            processor: Processes images; None leaves placeholders in their places.

        Raises:
            ConfigError: A key is missing or has an invalid value, or there is no chat template.
        """
        self.config, self.tokenizer, self.processor = as_config(config), tokenizer, processor
        self.played: list[Cache] = []
        self._settings = replace(ContextSettings.read(config), window_mode=LIMITED)
        self._width = self.config.data.max_prompt_length or 0
        self._control = ControlTokens.of(tokenizer)
        self._encoder = ChatEncoder(tokenizer, self._control, "", processor, self._settings.template_kwargs)
        self._batches = BatchBuilder(self._settings, tokenizer, processor)

    @property
    def failures(self) -> dict[int, str]:
        """The reason that an environment got no reply or could not continue in the last rollout, by index."""
        return {each["env_id"]: each["error"] for each in self.played if each["error"] is not None}

    # Prompts

    def preprocess_batch(self, gen_batch: DataProto, obs: Mapping[str, Any]) -> DataProto:
        """A manager's prompts as a batch for the actor.

        Args:
            gen_batch: Its columns ``index`` and ``data_source`` are copied if it has a row for each environment.
            obs: The manager's observations: ``text``, ``image``, ``anchor``.

        Returns:
            ``input_ids``, ``attention_mask``, ``position_ids``; and ``raw_prompt_ids`` (without padding),
            ``raw_prompt`` and ``messages_list`` (the chat), ``anchor_obs``, ``index``, ``data_source``, ``env_ids``.

        Raises:
            InputError: A prompt is too long, and ``data.truncation`` is ``error``.
        """
        return self._prompts(self._begun(gen_batch, [{}] * len(obs["text"]), None), obs)[0]

    def _begun(self, gen_batch: DataProto, infos: Sequence[Any], envs: Any) -> list[Cache]:
        """The caches of episodes that have begun with these infos."""
        name, group_n, before = uuid.uuid4().hex, self._group_n(envs), len(self.played)
        found: list[Cache] = []
        for row, info in enumerate(infos):
            cache = {"env_id": row, "index": row, "data_source": "default", "tag": "default", "history": []}
            cache |= {"group_id": (before + row) // group_n, "penalty": 0.0}
            cache |= {"uid": f"{name}-{row // group_n}", "traj_uid": f"{name}-{row // group_n}-{row}"}
            cache["error"] = cache["env_error"] = env_error(info)
            found.append(cache)
        known = {"tag": getattr(envs, "tags", ())} | gen_batch.non_tensor_batch
        for column in ("tag", "index", "data_source"):
            values = known.get(column, ())
            if len(values) not in (0, len(found)):
                raise InputError(
                    f"{len(values)} prompts were given for {len(found)} environments; expected one for each group in "
                    "training, or one for each environment."
                )
            for cache, value in zip(found, values, strict=False):
                cache[column] = value
        return found

    def _prompts(self, active: Sequence[Cache], obs: Any) -> tuple[DataProto, list[EncodedChat]]:
        chats = [[self._message(obs, each["env_id"])] for each in active]
        pairs = zip(self._encoder.prompts(chats), active, strict=True)
        encoded = [self._fitted(chat, each["env_id"]) for chat, each in pairs]
        objects = self._batches.columns([Row(0, each, 0, 0, True) for each in active], chats, encoded)
        objects |= {name: object_array(each[name] for each in active) for name in ("index", "data_source")}
        objects["anchor_obs"] = object_array(obs["anchor"][each["env_id"]] for each in active)
        objects["turns"] = object_array(len(each["history"]) for each in active)
        objects |= {"raw_prompt": object_array(chats), "raw_prompt_ids": object_array(chat.ids for chat in encoded)}
        tensors = self._batches.tensors(encoded, Layout([len(chat.ids) for chat in encoded], least=self._width))
        del tensors["responses"]
        return data_proto(tensors, objects, {}), encoded

    def _message(self, obs: Any, row: int) -> dict[str, Any]:
        content: Any = self._control.defuse(obs["text"][row])
        if self.processor is not None:
            from PIL import Image

            images = [] if obs.get("image") is None else [obs["image"][row]]
            content = list(items_of(content, (Image.fromarray(image) for image in images if image is not None)))
        return {"role": "user", "content": content}

    def _fitted(self, chat: EncodedChat, row: int) -> EncodedChat:
        limit, length, truncation = (
            self._width or self._settings.prompt_limit,
            len(chat.ids),
            self.config.data.truncation,
        )
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
            ``responses``, both together as ``input_ids``, ``attention_mask`` and ``position_ids``, and the masks and
            scores of ``ContextManager.formulate_rollouts``, aligned with ``responses``. Objects: its columns, and
            ``uid`` (of the group), ``traj_uid``, ``anchor_obs``, ``index``, ``data_source``,
            ``is_action_valid``, ``rewards`` (of the turn), ``active_masks`` (all True), ``episode_rewards``,
            ``episode_lengths``, ``tool_callings``; and on every row the mean of each kind of success, and mean, min and
            max of ``episode_rewards`` and ``episode_lengths``, over the trajectories whose environment did not fail.

        Raises:
            InputError: The number of rows in ``gen_batch`` does not match the environments.
            BackendError: The actor answered too few prompts.
            CollectError: There is no row, or too few groups had differing rewards.
        """
        self.played = []
        if is_train and (not hasattr(envs, "__len__") or len(gen_batch) < len(envs)):
            gen_batch = gen_batch.repeat(self._group_n(envs), interleave=True)
        actor = VerlActor(actor_rollout_wg, self.tokenizer) if is_worker_group(actor_rollout_wg) else actor_rollout_wg
        dynamic = is_train and self.config.algorithm.filter_groups.enable
        found = (self.dynamic_multi_turn_loop if dynamic else self.vanilla_multi_turn_loop)(gen_batch, actor, envs)
        learned = self._signal(found) if is_train else [env_error(each) is None for each in found]
        rows = [
            TrainingRow(Row(episode, each, place, place + 1, False), turn["chat"], *turn["tokens"])
            for episode, each in enumerate(found)
            if learned[episode]  # a group without a signal can still be judged
            for place, turn in enumerate(each["history"])
        ]
        if not rows:
            why = next(iter(self.failures.values()), "no environment was played")
            raise CollectError(f"there is no row to train on: {why}.")
        encoded = [row.encoded for row in rows]
        layout = Layout([len(chat.ids) for chat in encoded], [chat.replies[0][0] for chat in encoded], self._width)
        batch = self._batches.training(rows, found, layout)
        batch.batch["prompts"] = batch.batch["input_ids"][:, : layout.first]
        batch.non_tensor_batch.update(_columns(found, rows))
        batch.meta_info = {**gen_batch.meta_info, "metrics": batch.meta_info["metrics"] | mean_metrics(self.played)}
        return batch

    def vanilla_multi_turn_loop(self, gen_batch: DataProto, actor_rollout_wg: Any, envs: Any) -> list[Cache]:
        """Play one episode in every environment; see :meth:`multi_turn_loop`."""
        obs, infos = envs.reset(gen_batch.non_tensor_batch.get("env_kwargs"))
        found = self._begun(gen_batch, infos, envs)
        active = [each for each in found if each["error"] is None]
        for _ in range(self.config.env.max_steps or self.config.agent_proxy.max_turn):
            if not active:
                break
            prompts, encoded = self._prompts(active, obs)
            prompts.meta_info |= gen_batch.meta_info
            replies = replies_of(actor_rollout_wg.generate_sequences(prompts), self.tokenizer)
            if len(replies) != len(active):
                raise BackendError(f"the actor answered {len(replies)} of {len(active)} prompts.")
            chats = prompts.non_tensor_batch["messages_list"]
            asked, active = list(zip(active, chats, encoded, replies, strict=True)), []
            texts: list[str | None] = [None] * len(found)
            for each, *_, reply in asked:
                if reply.is_answer:
                    texts[each["env_id"]] = reply.text
                elif reply.out_of_context is None:
                    each["error"] = reply.error
            shown = obs["anchor"]
            obs, rewards, dones, infos = envs.step(texts)
            for each, chat, tokens, reply in asked:
                if reply.is_answer:
                    row, info = each["env_id"], infos[each["env_id"]]
                    turn = {"state": shown[row], "reward": float(rewards[row]), "info": info}
                    turn |= {"llm_response": reply.text, "chat": chat, "tokens": self._tokens(tokens, reply)}
                    turn["is_action_valid"] = bool(info.get("is_action_valid", True))
                    each["history"].append(turn)
                    each["penalty"] += 0.0 if turn["is_action_valid"] else self.config.es_manager.format_penalty
                    each["error"] = each["env_error"] = env_error(info)
                    active += [] if dones[row] else [each]
        self._judge(found, envs)
        return found

    def _tokens(self, chat: EncodedChat, reply: Reply) -> tuple[EncodedChat, list[tuple[int, float]] | None]:
        """The tokens of a turn, those of the reply's text if the actor knows none, and their log-probabilities."""
        prompt, said = list(reply.prompt_ids or chat.ids), reply.token_ids
        if said is None:
            (ids,) = self.tokenizer([reply.text], add_special_tokens=False)["input_ids"]
            said = [*ids, self.tokenizer.eos_token_id]
        span = range(len(prompt), len(prompt) + len(said))
        known = None if reply.log_probs is None else list(zip(span, reply.log_probs, strict=True))
        return replace(chat, ids=[*prompt, *said], replies=[(span.start, span.stop)]), known

    def _judge(self, found: Sequence[Cache], envs: Any) -> None:
        """Set each trajectory's success and metrics."""
        turns = [each["history"] for each in found]
        for each in found:
            each["episode_rewards"], each["episode_lengths"] = total_reward(each), float(len(each["history"]))
            each["tool_callings"] = sum(float(turn["info"].get("tool_calling", 0)) for turn in each["history"])
        success = envs.success_evaluator(
            total_infos=[[turn["info"] for turn in each] for each in turns],
            total_batch_list=[[{"active_masks": True}] * len(each) for each in turns],
            **{name: np.array([each[name] for each in found], np.float32) for name in _SUMS[:2]},
        )
        for place, each in enumerate(found):
            each["success"] = {} if each["error"] else {name: float(values[place]) for name, values in success.items()}
            known = {"num_actions": each["episode_lengths"], "reward": each["episode_rewards"]}
            known |= {name.removesuffix("_rate"): value for name, value in each["success"].items()}
            each["metrics"] = {f"{each['tag']}/{name}": value for name, value in known.items()}
        self.played += found

    def _signal(self, found: Sequence[Cache]) -> list[bool]:
        """Whether each trajectory is learned from in training."""
        signal = signal_of(found, self._settings)
        return [bool(each["history"]) and known for each, known in zip(found, signal, strict=True)]

    def dynamic_multi_turn_loop(self, gen_batch: DataProto, actor_rollout_wg: Any, envs: Any) -> list[Cache]:
        """Repeat rollouts until enough groups have differing rewards.

        Raises:
            CollectError: There were too few after the last try, and ``on_exhausted`` is ``raise``.
            EnvsFailedError: A rollout gave no signal at all, and more than half of all trajectories had failed.
        """
        keys, size, found = self.config.algorithm.filter_groups, self._group_n(envs), list[Cache]()
        most = MAX_TRIES if keys.max_num_gen_batches is None else keys.max_num_gen_batches
        wanted = size * (self.config.data.train_batch_size or len(envs) // size)
        for number in range(1, most + 1) if most > 0 else count_from(1):
            played = self.vanilla_multi_turn_loop(gen_batch, actor_rollout_wg, envs)
            signal = self._signal(played)
            if not any(signal):  # with a service that is down, this would never end
                check_share([env_error(each) for each in self.played])
            last = number == most and keys.on_exhausted == "keep"
            rewards = [each["episode_rewards"] if known else np.nan for each, known in zip(played, signal, strict=True)]
            nothing = np.zeros(len(played))
            found += filter_group_data(
                played, np.array(rewards), nothing, {}, nothing, nothing, last_try=last, group_n=size
            )[0]
            if len(found) >= wanted or last:
                return found
        raise CollectError(
            f"{most} rollouts gave {len(found)} of {wanted} trajectories in groups with differing rewards; raise "
            f"{FILTER}.max_num_gen_batches, make the environments easier or harder, or set {FILTER}.on_exhausted to "
            "'keep'."
        )

    # Sizes

    def _group_n(self, envs: Any) -> int:
        return getattr(envs, "group_n", None) or _group_size(self.config) or 1


def _columns(found: Sequence[Cache], rows: Sequence[TrainingRow]) -> dict[str, np.ndarray]:
    """The columns of trajectories and turns."""
    names = ("uid", "traj_uid", "index", "data_source", *_SUMS)
    columns = {name: object_array(row.row.rollout[name] for row in rows) for name in names}
    columns |= {name: columns[name].astype(np.float32) for name in _SUMS}
    for name, key in (("anchor_obs", "state"), ("rewards", "reward"), ("is_action_valid", "is_action_valid")):
        columns[name] = object_array(row.row.turns[0][key] for row in rows)
    valid = [each for each in found if each["history"] and env_error(each) is None]
    judged = [each["success"] for each in found if each["success"]]
    means: dict[str, Any] = {name: np.mean([each[name] for each in judged]) for name in (judged or [{}])[0]}
    for name in _SUMS[:2]:
        values = np.array([each[name] for each in valid], np.float32)
        means |= {f"{name}_mean": values.mean(), f"{name}_min": values.min(), f"{name}_max": values.max()}
    return columns | {name: np.full(len(rows), value) for name, value in {**means, "active_masks": True}.items()}
