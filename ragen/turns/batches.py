"""A manager's prompts as a batch for the actor, and the actor's replies as rows of tokens.

Prompts are chats of one message, padded on the left. Replies are returned as prompt, reply and both concatenated, in
the columns of verl's rollouts. A verl worker group returns these columns itself. For this project's backends, they are
made of the prompts and of the reply's tokens, or of its text if it has no tokens.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, NamedTuple

from ragen.errors import InputError
from ragen.llm_agent.batches.dataproto import data_proto, image_objects, object_array, pad_id, token_tensors
from ragen.llm_agent.batches.encoding import ChatEncoder, EncodedChat, ReplyMarker
from ragen.llm_agent.config.context import ContextSettings
from ragen.llm_agent.prompts.chat_template import ChatTemplate
from ragen.llm_agent.prompts.replies import ControlTokens, reply_texts
from ragen.settings import count, key, read
from ragen.turns.step_prompts import step_message
from ragen.validity import MASK, POLICIES, POLICY_KEY

if TYPE_CHECKING:
    import torch
    from verl import DataProto

TRUNCATIONS = ("error", "left", "right", "middle")
ON_EXHAUSTED = ("keep", "raise")

MAX_PROMPT = "data.max_prompt_length"
FILTER = "algorithm.filter_groups"


@dataclass(frozen=True)
class CollectorSettings:
    """The settings of collectors.

    Attributes:
        max_steps: Maximum number of turns: ``env.max_steps``, else ``agent_proxy.max_turn``; None if neither is set,
            which suffices for making environments.
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
        failed_trajectories: What is not learned from if an environment failed; see :mod:`ragen.validity`.
    """

    max_steps: int | None = None
    group_n: int | None = None
    train_groups: int | None = None
    prompt_width: int | None = key(None, MAX_PROMPT, low=1)
    prompt_limit: int | None = None
    truncation: str = key(TRUNCATIONS[0], "data.truncation", allowed=TRUNCATIONS)
    filters_groups: bool = key(False, f"{FILTER}.enable")
    max_num_gen_batches: int = key(10, f"{FILTER}.max_num_gen_batches", low=0)
    on_exhausted: str = key(ON_EXHAUSTED[0], f"{FILTER}.on_exhausted", allowed=ON_EXHAUSTED)
    failed_trajectories: str = key(MASK, POLICY_KEY, allowed=POLICIES)

    @classmethod
    def read(cls, config: Any) -> CollectorSettings:
        """Read and check the keys.

        Raises:
            ConfigError: A key has an invalid value.
        """
        width = count(config, MAX_PROMPT, None, low=1)
        return read(
            cls,
            config,
            max_steps=count(config, "env.max_steps", None, low=1) or count(config, "agent_proxy.max_turn", None, low=1),
            group_n=count(config, "env.rollout.n", None, low=1)
            or count(config, "es_manager.train.group_size", None, low=1),
            train_groups=count(config, "data.train_batch_size", None, low=1)
            or count(config, "es_manager.train.env_groups", None, low=1),
            prompt_limit=ContextSettings.read(config).prompt_limit if width is None else width,
        )


TOGETHER = ("input_ids", "attention_mask", "position_ids")
"""Columns of prompt and reply together; ``prompts`` are padded on the left, all others are the reply's."""


class PromptEncoder:
    """Makes batches of prompts with one tokenizer.

    Attributes:
        pad_id: The padding token.
    """

    def __init__(self, settings: CollectorSettings, tokenizer: Any, processor: Any = None) -> None:
        """Find the chat template and test it.

        Args:
            settings: The limits of prompts.
            tokenizer: A fast tokenizer with a chat template.
            processor: Processes images; None leaves placeholders in their places.

        Raises:
            ConfigError: There is no working template.
        """
        self._settings, self._processor = settings, processor
        template = ChatTemplate(tokenizer, processor)
        self._control = ControlTokens.of(tokenizer)
        marker = ReplyMarker(template, self._control, tokenizer.eos_token)
        self._encoder = ChatEncoder(tokenizer, template, marker, processor)
        self.pad_id = pad_id(tokenizer)

    def batch(self, obs: Mapping[str, Any], rows: Sequence[int], columns: Mapping[str, Sequence[Any]]) -> DataProto:
        """The batch of some environments.

        Args:
            obs: The manager's observations: ``text``, ``image``, ``anchor``.
            rows: Indices of the environments.
            columns: Further columns, with a value for every environment; they replace columns of the same name.

        Returns:
            ``input_ids``, ``attention_mask``, ``position_ids``; and ``raw_prompt_ids`` (without padding),
            ``raw_prompt`` and ``messages_list`` (the chat), ``anchor_obs``, ``index``, ``data_source``, ``env_ids``.

        Raises:
            InputError: A prompt is too long, and ``data.truncation`` is ``error``.
        """
        images = obs.get("image")
        shown = [(obs["text"][row], None if images is None else images[row]) for row in rows]
        chats = [[step_message(*each, self._control, self._processor is not None)] for each in shown]
        encoded = [self._fitted(chat, row) for chat, row in zip(self._encoder.prompts(chats, ""), rows, strict=True)]
        tensors = self._tensors(encoded)
        anchors = obs.get("anchor") or [None] * len(obs["text"])
        objects = {
            "raw_prompt_ids": object_array(list(chat.ids) for chat in encoded),
            "raw_prompt": object_array(chats),
            "messages_list": object_array(chats),
            "anchor_obs": object_array(anchors[row] for row in rows),
            "index": object_array(rows),
            "data_source": object_array("default" for _ in rows),
            "env_ids": object_array(rows),
        }
        if self._processor is not None:
            objects |= image_objects(encoded)
        objects |= {name: object_array(values[row] for row in rows) for name, values in columns.items()}
        return data_proto(tensors, objects, {})

    def _fitted(self, chat: EncodedChat, row: int) -> EncodedChat:
        limit, length = self._settings.prompt_limit, len(chat.ids)
        if limit is None or length <= limit:
            return chat
        if self._settings.truncation == "error" or chat.images:
            raise InputError(
                f"the prompt of env {row} has {length} tokens, and there is room for {limit} ({MAX_PROMPT}, or what "
                "the model's context leaves); raise it, show less history, or set data.truncation to left, right or "
                "middle."
            )
        kept = {
            "left": chat.ids[length - limit :],
            "right": chat.ids[:limit],
            "middle": chat.ids[: limit // 2] + chat.ids[length - (limit - limit // 2) :],
        }
        return replace(chat, ids=kept[self._settings.truncation])

    def _tensors(self, encoded: Sequence[EncodedChat]) -> dict[str, Any]:
        from torch.nn.functional import pad

        tensors = token_tensors(encoded, self.pad_id, self._processor)
        missing = (self._settings.prompt_width or 0) - tensors["input_ids"].shape[-1]
        if missing > 0:
            fill = {"input_ids": self.pad_id}
            tensors = {name: pad(each, (missing, 0), value=fill.get(name, 0)) for name, each in tensors.items()}
        return {name: tensors[name] for name in TOGETHER}


class Answers(NamedTuple):
    """An actor's replies to a batch of prompts.

    Attributes:
        texts: The replies.
        errors: Why there is no reply, or None.
        out_of_context: Why the prompt does not fit the model's context, or None.
        tensors: ``prompts``, ``responses``, ``input_ids``, ``attention_mask``, ``position_ids``, and further columns of
            the actor, such as log-probabilities.
    """

    texts: list[str]
    errors: list[str | None]
    out_of_context: list[str | None]
    tensors: dict[str, torch.Tensor]


def ask(actor: Any, prompts: DataProto) -> DataProto:
    """Generate replies; a batch for a worker group is padded to a multiple of its workers, and unpadded again."""
    world_size = getattr(actor, "world_size", None)
    if world_size is None:
        return actor.generate_sequences(prompts)
    from verl.protocol import pad_dataproto_to_divisor, unpad_dataproto

    padded, extra = pad_dataproto_to_divisor(prompts, world_size)
    return unpad_dataproto(actor.generate_sequences(padded), extra)


def read_answers(prompts: DataProto, output: DataProto, tokenizer: Any, pad_id: int) -> Answers:
    """The replies as texts and as rows of tokens.

    Args:
        prompts: The prompts.
        output: The actor's output: ``responses`` or ``response_texts``, and optionally ``errors``.
        tokenizer: The tokenizer.
        pad_id: The padding token.
    """
    given = dict(output.batch.items()) if output.batch is not None else {}
    texts = reply_texts(output, tokenizer)
    errors, full = (
        list(output.non_tensor_batch.get(name, [None] * len(texts))) for name in ("errors", "out_of_context")
    )
    if "responses" in given and _is_whole(prompts, given):
        return Answers(texts, errors, full, given | {"prompts": given.get("prompts", prompts.batch["input_ids"])})
    return Answers(texts, errors, full, _joined(prompts, _replies(given, texts, tokenizer, pad_id)))


def _is_whole(prompts: DataProto, given: Mapping[str, torch.Tensor]) -> bool:
    width = prompts.batch["input_ids"].shape[-1] + given["responses"].shape[-1]
    return all(name in given and given[name].shape[-1] == width for name in TOGETHER)


def _replies(
    given: Mapping[str, torch.Tensor], texts: Sequence[str], tokenizer: Any, pad_id: int
) -> dict[str, torch.Tensor]:
    """``responses``, ``response_mask``, and further columns of replies."""
    import torch

    if "responses" in given:
        mask = given.get("response_mask")
        known = {name: each for name, each in given.items() if each.shape == given["responses"].shape}
        return known | {"response_mask": (given["responses"] != pad_id).long() if mask is None else mask.long()}
    end = [] if tokenizer.eos_token_id is None else [tokenizer.eos_token_id]
    rows = [tokenizer(text, add_special_tokens=False)["input_ids"] + end for text in texts]
    width = max(1, *map(len, rows))
    filled = [row + [pad_id] * (width - len(row)) for row in rows]
    seen = [[1] * len(row) + [0] * (width - len(row)) for row in rows]
    return {"responses": torch.tensor(filled), "response_mask": torch.tensor(seen)}


def _joined(prompts: DataProto, replies: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    import torch

    asked, mask = prompts.batch, replies.pop("response_mask")
    positions = asked["position_ids"]
    following = torch.arange(1, mask.shape[-1] + 1)
    return {
        **replies,
        "prompts": asked["input_ids"],
        "input_ids": torch.cat([asked["input_ids"], replies["responses"]], -1),
        "attention_mask": torch.cat([asked["attention_mask"], mask.to(asked["attention_mask"].dtype)], -1),
        "position_ids": torch.cat([positions, positions[..., -1:] + following], -1),
    }


def stacked(rows: Sequence[Mapping[str, torch.Tensor]], pad_id: int) -> dict[str, torch.Tensor]:
    """Rows of several turns as tensors: prompts padded on the left, replies on the right.

    Args:
        rows: Rows with the same columns.
        pad_id: Pads tokens; other columns are padded with 0, and positions are continued.
    """
    import torch

    prompt = max(row["prompts"].shape[-1] for row in rows)
    reply = max(row["responses"].shape[-1] for row in rows)
    names = [name for name in rows[0] if all(name in row for row in rows)]
    return {name: torch.stack([_filled(name, row, prompt, reply, pad_id) for row in rows]) for name in names}


def _filled(name: str, row: Mapping[str, torch.Tensor], prompt: int, reply: int, pad_id: int) -> torch.Tensor:
    import torch
    from torch.nn.functional import pad

    left, right = prompt - row["prompts"].shape[-1], reply - row["responses"].shape[-1]
    left = left if name in ("prompts", *TOGETHER) else 0
    right = 0 if name == "prompts" else right
    fill = pad_id if name in ("prompts", "responses", "input_ids") else 0
    found = pad(row[name], (left, right), value=fill)
    if name == "position_ids" and right:
        found[..., -right:] = found[..., -right - 1 : -right] + torch.arange(1, right + 1)
    return found
