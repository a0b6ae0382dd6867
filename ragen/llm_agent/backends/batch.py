"""Batches of RAGEN's rollout loop to requests, and replies to batches.

The input is a batch of ``ContextManager.get_lm_inputs``: ``non_tensor_batch`` has ``env_ids``, ``group_ids``,
``messages_list``, with images ``multi_modal_data``, and, if the loop adds them, ``tags`` and ``turns``; ``batch`` has
left-padded ``input_ids`` and their ``attention_mask``. The output has ``env_ids``, ``group_ids``, ``response_texts``,
``errors`` and ``out_of_context`` (both None for a reply) and ``exchanges`` (known tokens of prompt and reply, for the
training batch); if all replies' tokens are known, also right-padded ``responses`` and ``response_mask``, and, if known,
``rollout_log_probs``. In a batch of ``get_prompts``, the tokens are the column ``prompt_ids``, and the output has no
tensors.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from ragen.config.loading import as_config
from ragen.errors import BackendError
from ragen.llm_agent.backends.base import Reply, Request, Sampling
from ragen.llm_agent.batches.dataproto import PromptBatch, TokenExchange, object_array, right_padded
from ragen.llm_agent.prompts.replies import reply_texts

if TYPE_CHECKING:
    from torch import Tensor

    from ragen.config.schema import Sampling as SamplingKeys
    from ragen.llm_agent.batches.dataproto import AnyBatch

_SAMPLING = ("do_sample", "temperature", "top_p", "top_k")


def requests_of(lm_inputs: AnyBatch) -> list[Request]:
    """A batch of prompts as requests, in its order."""
    columns = lm_inputs.non_tensor_batch
    chats = columns["messages_list"]
    size = len(chats)
    rows = zip(
        map(int, columns["env_ids"]),
        map(int, columns.get("turns", [sum(message["role"] == "assistant" for message in chat) for chat in chats])),
        map(str, columns.get("tags", [""] * size)),
        chats,
        _prompt_rows(lm_inputs, size),
        [data.get("images", ()) for data in columns.get("multi_modal_data", [dict[str, Any]()] * size)],
        strict=True,
    )
    return [Request(*row) for row in rows]


def _prompt_rows(lm_inputs: AnyBatch, size: int) -> list[Any]:
    if isinstance(lm_inputs, PromptBatch):
        return list(lm_inputs.non_tensor_batch["prompt_ids"])
    if lm_inputs.batch is None or "input_ids" not in set(lm_inputs.batch.keys()):
        return [None] * size
    ids, mask = lm_inputs.batch["input_ids"], lm_inputs.batch["attention_mask"].bool()
    return [row[seen].tolist() for row, seen in zip(ids, mask, strict=True)]


def outputs_of(lm_inputs: AnyBatch, replies: Sequence[Reply], pad_id: int) -> Any:
    """Replies to a batch of prompts as a batch of the same kind; see the module for columns.

    Args:
        lm_inputs: The prompts.
        replies: One for each.
        pad_id: The padding token.
    """
    given, size = lm_inputs.non_tensor_batch, len(replies)
    chats = given.get("messages_list", [()] * size)
    rows = _prompt_rows(lm_inputs, size) if any(reply.token_ids is not None for reply in replies) else [None] * size
    columns = {
        **{name: given[name] for name in ("env_ids", "group_ids") if name in given},
        "response_texts": object_array(reply.text for reply in replies),
        "errors": object_array(reply.error for reply in replies),
        "out_of_context": object_array(reply.out_of_context for reply in replies),
        "exchanges": object_array(exchange_of(*each) for each in zip(chats, rows, replies, strict=True)),
    }
    meta_info = dict(lm_inputs.meta_info)
    if isinstance(lm_inputs, PromptBatch):
        return PromptBatch(columns, meta_info)
    from verl import DataProto

    return DataProto.from_dict(tensors=_token_rows(replies, pad_id), non_tensors=columns, meta_info=meta_info)


def replies_of(outputs: AnyBatch, tokenizer: Any, asked: int) -> list[Reply]:
    """The replies in the output of an actor; see the module for columns.

    Args:
        outputs: ``response_texts``, or tokens in ``responses``, and further columns as far as the actor has them.
        tokenizer: Decodes tokens.
        asked: The number of prompts.

    Raises:
        BackendError: The actor answered more or fewer.
    """
    texts, given = reply_texts(outputs, tokenizer), outputs.non_tensor_batch
    if len(texts) != asked:
        raise BackendError(f"the actor gave {len(texts)} replies to {asked} prompts; expected one each.")
    columns = (given.get(name, [None] * len(texts)) for name in ("exchanges", "errors", "out_of_context"))
    return [
        Reply(text, error=error, out_of_context=full)
        if said is None
        else Reply(
            text, said.reply_ids, said.log_probs, said.prompt_ids, said.cut_off, error=error, out_of_context=full
        )
        for text, said, error, full in zip(texts, *columns, strict=True)
    ]


def exchange_of(chat: Sequence[dict[str, Any]], row: Sequence[int] | None, reply: Reply) -> TokenExchange:
    """The prompt and reply of one turn in tokens, as far as the prompt's row or the server knows them."""
    prompt_ids = row if reply.prompt_ids is None else reply.prompt_ids
    if prompt_ids is None or reply.token_ids is None:
        return TokenExchange(cut_off=reply.cut_off)
    return TokenExchange.of_tokens(chat, prompt_ids, reply.token_ids, reply.log_probs, reply.cut_off)


def _token_rows(replies: Sequence[Reply], pad_id: int) -> dict[str, Tensor] | None:
    """The replies' tokens as right-padded rows; None unless those of all replies are known."""
    answered = [reply for reply in replies if reply.is_answer]
    if not answered or any(reply.token_ids is None for reply in answered):
        return None
    ids = [list(reply.token_ids or ()) for reply in replies]
    rows = {"responses": right_padded(ids, pad_id), "response_mask": right_padded([[1] * len(row) for row in ids], 0)}
    if all(reply.log_probs is not None for reply in answered):
        rows["rollout_log_probs"] = right_padded([list(reply.log_probs or ()) for reply in replies], 0.0)
    return rows


def read_sampling(config: Any, validate: bool) -> Sampling:
    """The sampling parameters for training, or for validation, where ``val_kwargs`` take precedence.

    Raises:
        ConfigError: A key has an invalid value.
    """
    rollout = as_config(config).actor_rollout_ref.rollout
    given: dict[str, Any] = {**_set(rollout), **(_set(rollout.val_kwargs) if validate else {})}
    if rollout.response_length:
        given["max_tokens"] = rollout.response_length
    return replace(Sampling(), **given)


def _set(section: SamplingKeys) -> dict[str, Any]:
    """The sampling parameters that a section sets."""
    return {name: value for name in _SAMPLING if (value := getattr(section, name)) is not None}
