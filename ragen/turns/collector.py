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
from typing import TYPE_CHECKING, Any

import numpy as np

from ragen.config.loading import as_config
from ragen.errors import CollectError, InputError
from ragen.llm_agent.backends.base import Reply
from ragen.llm_agent.backends.batch import exchange_of, replies_of
from ragen.llm_agent.backends.verl import VerlActor, is_worker_group
from ragen.llm_agent.batches.builder import BatchBuilder
from ragen.llm_agent.batches.dataproto import object_array
from ragen.llm_agent.batches.encoding import ChatEncoder, EncodedChat
from ragen.llm_agent.batches.metrics import mean_metrics
from ragen.llm_agent.batches.training_rows import TrainingRow, exchanged_row, signal_of, total_reward
from ragen.llm_agent.prompts.conversation import Row, items_of, prompt_rows, turn_rows
from ragen.llm_agent.prompts.replies import ControlTokens
from ragen.llm_agent.prompts.settings import LIMITED, ContextSettings
from ragen.statistics import differ
from ragen.validity import check_share, env_error, is_valid

if TYPE_CHECKING:
    from verl import DataProto

_SUMS = ("episode_rewards", "episode_lengths", "tool_callings")
_COLUMNS = ("uid", "traj_uid", "index", "data_source", "anchor_obs", "is_action_valid", "rewards", "active_masks")
MAX_TRIES = 10  # verl-agent's default
Cache = dict[str, Any]
"""A rollout cache with the names ``uid`` and ``traj_uid``, and ``success`` by kind; ``error`` is the reason that it got
no reply, or its environment's failure. Turns also have their tokens."""


def to_list_of_dict(batch: DataProto) -> list[dict[str, Any]]:
    """The rows of a batch, each with its tensors and objects by name."""
    rows = (batch[place] for place in range(len(batch)))
    return [{**row.batch, **row.non_tensor_batch} for row in rows]


def filter_group_data(
    batch_list: Sequence[Any],
    episode_rewards: np.ndarray,
    episode_lengths: np.ndarray,
    success: dict[str, np.ndarray],
    traj_uid: np.ndarray,
    tool_callings: np.ndarray,
    config: Any = None,
    last_try: bool = False,
) -> tuple[Any, ...]:
    """Drop the groups that give no learning signal: those whose rewards differ by no more than rounding.

    Args:
        batch_list: The rows of each trajectory, in the order of its turns; members of a group are adjacent.
        episode_rewards: Sums of rewards.
        episode_lengths: Turns.
        success: Arrays by name, such as ``success_rate``.
        traj_uid: Unique names.
        tool_callings: Sums of ``info["tool_calling"]``.
        config: The whole configuration, which has the size of groups.
        last_try: Keep everything, since there is no further try.

    Returns:
        The first six arguments, of the groups that stay.

    Raises:
        InputError: The trajectories are not whole groups.
    """
    count, size = len(batch_list), 1 if last_try else _group_size(config)
    if count % size:
        raise InputError(f"{count} trajectories are no whole groups of {size} (env.rollout.n).")
    groups = np.arange(count).reshape(-1, size)
    stays = [last_try or differ(episode_rewards[group]) for group in groups]
    kept = groups[stays].ravel().tolist()
    sums = episode_rewards[kept], episode_lengths[kept]
    success = {name: values[kept] for name, values in success.items()}
    return [batch_list[place] for place in kept], *sums, success, traj_uid[kept], tool_callings[kept]


def _group_size(config: Any, envs: Any = None) -> int:
    select = as_config(config).select
    return getattr(envs, "group_n", None) or select("env.rollout.n") or select("es_manager.train.group_size") or 1


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

    # Prompts

    def preprocess_batch(self, gen_batch: DataProto, obs: Mapping[str, Any]) -> DataProto:
        """A manager's prompts as a batch for the actor.

        Args:
            gen_batch: Its columns ``index`` and ``data_source`` are copied if it has a row for each environment.
            obs: The manager's observations: ``text``, ``image``, ``anchor``.

        Returns:
            The tensors of ``ContextManager.get_lm_inputs``; and ``raw_prompt_ids`` (without padding),
            ``raw_prompt`` and ``messages_list`` (the chat), ``anchor_obs``, ``index``, ``data_source``, ``env_ids``.

        Raises:
            InputError: A prompt is too long, and ``data.truncation`` is ``error``.
        """
        return self._prompts(self._begun(gen_batch, [{}] * len(obs["text"])), obs)[0]

    def _begun(self, gen_batch: DataProto, infos: Sequence[Any], envs: Any = None) -> list[Cache]:
        """The caches of episodes that have begun with these infos."""
        count, size, name = len(infos), _group_size(self.config, envs), uuid.uuid4().hex
        if len(gen_batch) not in (0, count):
            raise InputError(
                f"{len(gen_batch)} prompts for {count} environments; expected one for each environment, or in training "
                "one for each group, which is then repeated."
            )
        given = {"index": range(count), "data_source": ["default"] * count} | gen_batch.non_tensor_batch
        tags = getattr(envs, "tags", ["default"] * count)
        return [
            {
                "env_id": row,
                "group_id": (len(self.played) + row) // size,
                "tag": tags[row],
                "index": given["index"][row],
                "data_source": given["data_source"][row],
                "uid": f"{name}-{row // size}",
                "traj_uid": f"{name}-{row // size}-{row}",
                "env_error": env_error(info),
                "error": None,
                "history": [],
            }
            for row, info in enumerate(infos)
        ]

    def _prompts(self, active: Sequence[Cache], obs: Any) -> tuple[DataProto, list[EncodedChat]]:
        chats = [[self._message(obs, each["env_id"])] for each in active]
        encoded = [self._fitted(*each) for each in zip(self._encoder.prompts(chats), active, strict=True)]
        batch = self._batches.prompts(prompt_rows(active, None), chats, encoded, self._width)
        objects = {name: object_array(each[name] for each in active) for name in ("index", "data_source")}
        objects["anchor_obs"] = object_array(obs["anchor"][each["env_id"]] for each in active)
        objects["turns"] = object_array(len(each["history"]) for each in active)
        objects |= {"raw_prompt": object_array(chats), "raw_prompt_ids": object_array(chat.ids for chat in encoded)}
        batch.non_tensor_batch |= objects
        return batch, encoded

    def _message(self, obs: Any, row: int) -> dict[str, Any]:
        content: Any = self._control.defuse(obs["text"][row])
        if self.processor is not None:
            from PIL import Image

            images = [] if obs["image"] is None else [obs["image"][row]]
            content = list(items_of(content, map(Image.fromarray, images)))
        return {"role": "user", "content": content}

    def _fitted(self, chat: EncodedChat, cache: Cache) -> EncodedChat:
        length, truncation = len(chat.ids), self.config.data.truncation
        limit = self._width or self._settings.prompt_limit or length
        if length <= limit:
            return chat
        if truncation == "error" or chat.images:
            raise InputError(
                f"the prompt of env {cache['env_id']} has {length} tokens, and there is room for {limit} "
                "(data.max_prompt_length, or what the model's context leaves); raise it, show less history, or set "
                "data.truncation to left, right or middle."
            )
        begin = {"left": 0, "right": limit, "middle": limit // 2}[truncation]
        return replace(chat, ids=chat.ids[:begin] + chat.ids[length - limit + begin :])

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
        if is_train:
            gen_batch = gen_batch.repeat(_group_size(self.config, envs), interleave=True)
        actor = VerlActor(actor_rollout_wg, self.tokenizer) if is_worker_group(actor_rollout_wg) else actor_rollout_wg
        dynamic = is_train and self.config.algorithm.filter_groups.enable
        found = (self.dynamic_multi_turn_loop if dynamic else self.vanilla_multi_turn_loop)(gen_batch, actor, envs)
        # A group without a signal can still be judged.
        learned = signal_of(found, self._settings) if is_train else list(map(is_valid, found))
        rows = [self._tokens(row) for row in turn_rows(found, 1) if row.turns and learned[row.episode]]
        if not rows:
            why = next((each["error"] for each in self.played if each["error"]), "no environment was played")
            raise CollectError(f"there is no row to train on: {why}.")
        batch = self._batches.training(rows, found, self._width)
        batch.non_tensor_batch.update(_columns(found, rows))
        batch.meta_info = {**gen_batch.meta_info, "metrics": batch.meta_info["metrics"] | mean_metrics(self.played)}
        return batch

    def vanilla_multi_turn_loop(self, gen_batch: DataProto, actor_rollout_wg: Any, envs: Any) -> list[Cache]:
        """Play one episode in every environment; see :meth:`multi_turn_loop`."""
        obs, infos = envs.reset(gen_batch.non_tensor_batch.get("env_kwargs"))
        found = self._begun(gen_batch, infos, envs)
        active = [each for each in found if each["env_error"] is None]
        for _ in range(self.config.env.max_steps or self.config.agent_proxy.max_turn):
            if not active:
                break
            prompts, encoded = self._prompts(active, obs)
            prompts.meta_info |= gen_batch.meta_info
            replies = replies_of(actor_rollout_wg.generate_sequences(prompts), self.tokenizer, len(active))
            turns = list(zip(active, prompts.non_tensor_batch["messages_list"], encoded, replies, strict=True))
            texts = {each["env_id"]: reply.text for each, *_, reply in turns if reply.is_answer}
            shown, active = obs["anchor"], []
            obs, rewards, dones, infos = envs.step([texts.get(row) for row in range(len(found))])
            for each, chat, prompt, reply in turns:
                row, info = each["env_id"], infos[each["env_id"]]
                if row in texts:
                    turn = {
                        "anchor_obs": shown[row],
                        "chat": chat,
                        "prompt": prompt,
                        "reply": reply,
                        "llm_response": reply.text,
                        "is_action_valid": bool(info.get("is_action_valid", True)),
                        "reward": float(rewards[row]),
                        "info": info,
                        "active_masks": True,
                    }
                    each["history"].append(turn)
                    active += [] if dones[row] else [each]
                else:
                    each["error"] = reply.error  # None if the context is full: that is the model's own end
        self._judge(found, envs)
        return found

    def _tokens(self, row: Row) -> TrainingRow:
        """The tokens of a turn; those of the reply's text if the actor knows none."""
        (turn,) = row.turns
        reply: Reply = turn["reply"]
        if reply.token_ids is None:
            (ids,) = self.tokenizer([reply.text], add_special_tokens=False)["input_ids"]
            reply = replace(reply, token_ids=[*ids, self.tokenizer.eos_token_id])
        exchange = exchange_of(turn["chat"], turn["prompt"].ids, reply)
        return exchanged_row(row, [exchange], {"role": "assistant", "content": reply.text}, turn["prompt"])

    def _judge(self, found: Sequence[Cache], envs: Any) -> None:
        """Set each trajectory's sums, success and metrics."""
        for each in found:
            turns, each["error"] = each["history"], each["error"] or env_error(each)
            each["episode_rewards"], each["episode_lengths"] = total_reward(each), float(len(turns))
            each["tool_callings"] = sum(turn["info"].get("tool_calling", 0) for turn in turns)
            invalid = sum(not turn["is_action_valid"] for turn in turns)
            each["penalty"] = self.config.es_manager.format_penalty * invalid
        success = envs.success_evaluator(
            total_infos=[[turn["info"] for turn in each["history"]] for each in found],
            total_batch_list=[each["history"] for each in found],
        )
        for place, each in enumerate(found):
            judged = {} if each["error"] else {name: float(values[place]) for name, values in success.items()}
            known = {"num_actions": each["episode_lengths"], "reward": each["episode_rewards"], **judged}
            each["success"] = judged
            each["metrics"] = {f"{each['tag']}/{name.removesuffix('_rate')}": value for name, value in known.items()}
        self.played += found

    def dynamic_multi_turn_loop(self, gen_batch: DataProto, actor_rollout_wg: Any, envs: Any) -> list[Cache]:
        """Repeat rollouts until enough groups have differing rewards.

        Raises:
            CollectError: There were too few after the last try, and ``on_exhausted`` is ``raise``.
            EnvsFailedError: A rollout gave no signal at all, and more than half of all trajectories had failed.
        """
        keys, size = self.config.algorithm.filter_groups, _group_size(self.config, envs)
        most = MAX_TRIES if keys.max_num_gen_batches is None else keys.max_num_gen_batches
        found, tries = list[Cache](), 0
        while True:
            played = self.vanilla_multi_turn_loop(gen_batch, actor_rollout_wg, envs)
            tries += 1
            signal = signal_of(played, self._settings)
            if not any(signal):  # with a service that is down, this would never end
                check_share(list(map(env_error, self.played)))
            if tries == most and keys.on_exhausted == "keep":
                return found + played
            for start in range(0, len(played), size):
                group = played[start : start + size]
                known = zip(group, signal[start:], strict=False)
                if differ([each["episode_rewards"] for each, counts in known if counts and each["history"]]):
                    found += group
            wanted = size * (self.config.data.train_batch_size or 0) or len(played)
            if len(found) >= wanted:
                return found
            if tries == most:
                raise CollectError(
                    f"{most} rollouts gave {len(found)} of {wanted} trajectories in groups with differing rewards; "
                    "raise algorithm.filter_groups.max_num_gen_batches, make the environments easier or harder, or "
                    "set algorithm.filter_groups.on_exhausted to 'keep'."
                )


def _columns(found: Sequence[Cache], rows: Sequence[TrainingRow]) -> dict[str, np.ndarray]:
    """The columns of trajectories and turns."""
    shown = [{**row.row.rollout, **(turn := row.row.turns[0]), "rewards": turn["reward"]} for row in rows]
    columns = {name: object_array(each[name] for each in shown) for name in _COLUMNS}
    columns |= {name: np.array([each[name] for each in shown], np.float32) for name in _SUMS}
    judged = [each["success"] for each in found if each["success"]]
    means = {name: np.mean([each[name] for each in judged]) for name in (judged or [{}])[0]}
    valid = [each for each in found if each["history"] and is_valid(each)]
    for name in _SUMS[:2]:
        values = np.array([each[name] for each in valid], np.float32)
        means |= {f"{name}_{how}": getattr(values, how)() for how in ("mean", "min", "max")}
    return columns | {name: np.full(len(rows), value) for name, value in means.items()}
