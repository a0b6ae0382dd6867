"""An actor's replies as rows of tokens: prompt, reply, and both together, in the columns of verl's rollouts.

A verl worker group gives these columns itself. Where the actor is one of this project's backends they are made of the
prompts and of the reply's tokens, or of its text where it does not tell tokens.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    import torch
    from verl import DataProto

TOGETHER = ("input_ids", "attention_mask", "position_ids")
"""Columns of prompt and reply together; ``prompts`` are padded on the left, all others are the reply's."""


class Answers(NamedTuple):
    """What an actor gave for a batch of prompts.

    Attributes:
        texts: The replies.
        errors: Why there is none, or None.
        tensors: ``prompts``, ``responses``, ``input_ids``, ``attention_mask``, ``position_ids``, and what else the
            actor told of its replies, such as log-probabilities.
    """

    texts: list[str]
    errors: list[str | None]
    tensors: dict[str, torch.Tensor]


def ask(actor: Any, prompts: DataProto) -> DataProto:
    """Let an actor answer; a batch for a worker group is filled up to a multiple of its workers, and cut again."""
    world_size = getattr(actor, "world_size", None)
    if world_size is None:
        return actor.generate_sequences(prompts)
    from verl.protocol import pad_dataproto_to_divisor, unpad_dataproto

    padded, extra = pad_dataproto_to_divisor(prompts, world_size)
    return unpad_dataproto(actor.generate_sequences(padded), extra)


def read_answers(prompts: DataProto, output: DataProto, tokenizer: Any, pad_id: int) -> Answers:
    """The replies as texts and as rows of tokens.

    Args:
        prompts: What was asked.
        output: What the actor gave: ``responses`` or ``response_texts``, and perhaps ``errors``.
        tokenizer: Reads and writes tokens.
        pad_id: Fills up rows.
    """
    given = dict(output.batch.items()) if output.batch is not None else {}
    objects = output.non_tensor_batch
    texts = objects.get("response_texts")
    if texts is None:
        texts = tokenizer.batch_decode(given["responses"], skip_special_tokens=True)
    said = ["" if text is None else str(text) for text in texts]
    errors = list(objects.get("errors", [None] * len(said)))
    if "responses" in given and _is_whole(prompts, given):
        return Answers(said, errors, given | {"prompts": given.get("prompts", prompts.batch["input_ids"])})
    return Answers(said, errors, _joined(prompts, _replies(given, said, tokenizer, pad_id)))


def _is_whole(prompts: DataProto, given: Mapping[str, torch.Tensor]) -> bool:
    width = prompts.batch["input_ids"].shape[-1] + given["responses"].shape[-1]
    return all(name in given and given[name].shape[-1] == width for name in TOGETHER)


def _replies(
    given: Mapping[str, torch.Tensor], texts: Sequence[str], tokenizer: Any, pad_id: int
) -> dict[str, torch.Tensor]:
    """``responses`` and ``response_mask``, and what else was given of replies."""
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
    """Rows of several turns as tensors: prompts filled up on their left, replies on their right.

    Args:
        rows: Each with the same columns.
        pad_id: Fills up tokens; everything else is filled up with 0, and positions count on.
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
