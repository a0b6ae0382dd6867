"""Builds verl's ``DataProto`` from rows of tokens: left padding, positions, masks and scores.

Importing verl takes seconds, so it is imported only when the first batch is built.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from inspect import signature
from typing import TYPE_CHECKING, Any, Self, TypeAlias

from ragen.extras import needs

TokenScore = tuple[int, float]

if TYPE_CHECKING:
    import numpy as np
    import torch
    from verl import DataProto

    from ragen.llm_agent.batches.encoding import EncodedChat
    from ragen.llm_agent.prompts.chat_template import Message


def object_array(values: Iterable[Any]) -> np.ndarray:
    """A one-dimensional array of objects, even for lists of equal length, of which ``np.array`` makes a matrix."""
    import numpy as np

    items = list(values)
    array = np.empty(len(items), dtype=object)
    array[:] = items
    return array


@needs("verl", "a DataProto batch")
def data_proto(
    tensors: dict[str, torch.Tensor], objects: dict[str, np.ndarray], meta_info: dict[str, Any]
) -> DataProto:
    """A ``DataProto`` of tensors and object arrays whose first dimension is the batch."""
    from tensordict import TensorDict
    from verl import DataProto

    size = len(next(iter(tensors.values())))
    return DataProto(TensorDict(tensors, batch_size=[size]), objects, meta_info)


class Layout:
    """The places of tokens in the columns of a batch.

    Attributes:
        starts: The column of each row's first token.
        width: Number of columns.
        first: The first column of ``responses``, and of masks and scores. 1 in RAGEN's batches, whose ``responses``
            are ``input_ids`` without the first column.
    """

    def __init__(self, lengths: Sequence[int], ends: Sequence[int] | None = None, least: int = 0) -> None:
        """Pad rows on the left.

        Args:
            lengths: The length of each row.
            ends: The end of the prompt of each row, if all are to end in one column, after which ``responses`` begin.
            least: Minimum number of columns before that.
        """
        aligned = lengths if ends is None else ends
        before = max(least, *aligned)
        self.starts = [before - end for end in aligned]
        self.width = max(start + length for start, length in zip(self.starts, lengths, strict=True))
        self.first = 1 if ends is None else before

    def tokens(self, rows: Sequence[Sequence[int]], filler: int) -> dict[str, torch.Tensor]:
        """Rows as ``input_ids``, ``attention_mask`` and ``position_ids``, int64 ``(rows, width)``."""
        import torch

        ids = torch.full((len(rows), self.width), filler, dtype=torch.int64)
        mask = torch.zeros_like(ids)
        for place, (start, row) in enumerate(zip(self.starts, rows, strict=True)):
            ids[place, start : start + len(row)] = torch.tensor(row, dtype=torch.int64)
            mask[place, start : start + len(row)] = 1
        positions = (torch.arange(self.width) - torch.tensor(self.starts).unsqueeze(-1)).clamp(min=0)
        return {"input_ids": ids, "attention_mask": mask, "position_ids": positions}

    def values(self, rows: Sequence[Iterable[TokenScore]]) -> torch.Tensor:
        """The sums of values at tokens, 0 elsewhere: float32 ``(rows, width - first)``, aligned with ``responses``."""
        import numpy as np
        import torch

        table = np.zeros((len(rows), self.width), np.float32)  # setting single numbers of a tensor is slow
        for line, start, row in zip(table, self.starts, rows, strict=True):
            for token, value in row:
                line[start + token] += value
        return torch.from_numpy(table)[:, self.first :].contiguous()

    def mask(self, rows: Sequence[Iterable[tuple[int, int]]]) -> torch.Tensor:
        """Ones at spans of tokens, in the form of :meth:`values`."""
        import numpy as np
        import torch

        table = np.zeros((len(rows), self.width), np.float32)
        for line, start, row in zip(table, self.starts, rows, strict=True):
            for begin, end in row:
                line[start + begin : start + end] = 1
        return torch.from_numpy(table)[:, self.first :].contiguous()


@needs("verl", "a DataProto batch")
def token_tensors(
    chats: Sequence[EncodedChat], layout: Layout, pad_token_id: int, processor: Any = None
) -> dict[str, torch.Tensor]:
    """The tokens of a batch, their attention mask and positions, as tensors.

    Args:
        chats: The rows.
        layout: Their places.
        pad_token_id: The padding token.
        processor: Computes the positions for models with multimodal rotary embeddings (``get_rope_index``).

    Returns:
        ``input_ids``, ``attention_mask`` and ``position_ids``, int64 ``(rows, tokens)``, and ``responses``. Positions
        are ``(rows, 1 + 3, tokens)`` for such models.
    """
    tensors = layout.tokens([chat.ids for chat in chats], pad_token_id)
    ids, attention, positions = (tensors[name] for name in ("input_ids", "attention_mask", "position_ids"))
    if hasattr(processor, "get_rope_index"):
        tensors["position_ids"] = _image_positions(ids, attention, positions, chats, layout, processor)
    return tensors | {"responses": ids[:, layout.first :].clone()}


def _image_positions(
    ids: torch.Tensor,
    attention: torch.Tensor,
    plain: torch.Tensor,
    chats: Sequence[EncodedChat],
    layout: Layout,
    processor: Any,
) -> torch.Tensor:
    """Positions in verl's format for models with multimodal rotary embeddings: plain, time, height, width."""
    import torch

    wants_kinds = "mm_token_type_ids" in signature(processor.get_rope_index).parameters  # transformers 5
    rows = []
    for row, (chat, start) in enumerate(zip(chats, layout.starts, strict=True)):
        here = slice(row, row + 1)
        extra = {"image_grid_thw": chat.image_inputs.get("image_grid_thw"), "video_grid_thw": None}
        if wants_kinds:
            kinds = extra["mm_token_type_ids"] = torch.zeros_like(ids[here])
            given = chat.image_inputs.get("mm_token_type_ids", kinds[:, :0])
            kinds[:, start : start + given.shape[-1]] = given
        vision, _ = processor.get_rope_index(input_ids=ids[here], attention_mask=attention[here], **extra)
        rows.append(torch.cat([plain[here], vision[:, 0].masked_fill(attention[here] == 0, 0)]))
    return torch.stack(rows)


def image_objects(chats: Sequence[EncodedChat]) -> dict[str, np.ndarray]:
    """The images in verl's format: as they are for rollouts, and as the processor's tensors for training.

    Returns:
        ``multi_modal_data`` (``{"images": [..]}``) and ``multi_modal_inputs`` of each row.
    """
    return {
        "multi_modal_data": object_array({"images": chat.images} if chat.images else {} for chat in chats),
        "multi_modal_inputs": object_array(_model_inputs(chat) for chat in chats),
    }


def _model_inputs(chat: EncodedChat) -> dict[str, Any]:
    inputs = {name: value for name, value in chat.image_inputs.items() if name != "mm_token_type_ids"}
    grid = inputs.get("image_grid_thw")
    if grid is not None:
        inputs["images_seqlens"] = (grid[:, 1] * grid[:, 2]).repeat_interleave(grid[:, 0])
    return inputs


@dataclass
class PromptBatch:
    """Prompts or replies in rows, like a ``DataProto`` without tensors.

    Attributes:
        non_tensor_batch: Columns; see :mod:`ragen.llm_agent.rollout.actor`. ``prompt_ids`` has each prompt's tokens.
        meta_info: Facts about the whole batch.
        batch: None; a ``DataProto`` has its tensors here.
    """

    non_tensor_batch: dict[str, np.ndarray]
    meta_info: Mapping[str, Any] = field(default_factory=dict)
    batch: None = None


AnyBatch: TypeAlias = "DataProto | PromptBatch"


def pad_id(tokenizer: Any) -> int:
    """The padding token."""
    return tokenizer.eos_token_id or 0 if tokenizer.pad_token_id is None else tokenizer.pad_token_id


def left_padded(rows: Sequence[Sequence[int]], filler: int) -> dict[str, torch.Tensor]:
    """Prompts as ``input_ids``, ``attention_mask`` and ``position_ids``, int64 ``(rows, longest)``."""
    return Layout(list(map(len, rows))).tokens(rows, filler)


def right_padded(rows: Sequence[Sequence[Any]], filler: float) -> torch.Tensor:
    """Rows as ``(rows, longest)``, float32 if the filler is a float, else int64."""
    import torch

    width = max(map(len, rows))
    kind = torch.float32 if isinstance(filler, float) else torch.long
    return torch.tensor([[*row, *[filler] * (width - len(row))] for row in rows], dtype=kind)


# Tokens on their way from the actor to the training batch


@dataclass(frozen=True)
class TokenExchange:
    """A prompt and its reply as tokens.

    Attributes:
        messages: The prompt as a chat; empty if its tokens are unknown.
        prompt_ids: The prompt's tokens; None if unknown.
        reply_ids: The sampled tokens, including the one that ended the turn, if sampled; None if unknown.
        log_probs: The log-probability of each of ``reply_ids`` when it was sampled; None if unknown.
        cut_off: Whether the reply reached its length limit before the model ended it.
    """

    messages: Sequence[Message] = ()
    prompt_ids: Sequence[int] | None = None
    reply_ids: Sequence[int] | None = None
    log_probs: Sequence[float] | None = None
    cut_off: bool = False

    @classmethod
    def of_tokens(
        cls,
        messages: Sequence[Message],
        prompt_ids: Sequence[int],
        reply_ids: Sequence[int],
        log_probs: Sequence[float] | None,
        cut_off: bool,
    ) -> Self:
        """An exchange with known tokens, stored in arrays to save memory: a history keeps all its prompts."""
        values = None if log_probs is None else array("d", log_probs)
        return cls(messages, array("i", prompt_ids), array("i", reply_ids), values, cut_off)

    @property
    def has_tokens(self) -> bool:
        """Whether the tokens of the prompt and of the reply are known."""
        return self.prompt_ids is not None and self.reply_ids is not None


class RawReply(str):
    """A reply's raw text, ``llm_raw_response`` of a turn, with its tokens if known.

    Attributes:
        exchange: The prompt and the reply as tokens; None if the actor did not return them.
        tag_added: Whether its first tag is from the prompt and was not written by the model.
    """

    __slots__ = ("exchange", "tag_added")
    exchange: TokenExchange | None
    tag_added: bool

    def __new__(cls, text: str, exchange: TokenExchange | None = None, tag_added: bool = False) -> Self:
        """Attach the exchange to the text."""
        reply = super().__new__(cls, text)
        reply.exchange, reply.tag_added = exchange, tag_added
        return reply


def raw_reply(turn: dict[str, Any]) -> RawReply:
    """A played turn's raw reply; for a plain string, one without an exchange."""
    raw = turn.get("llm_raw_response", "")
    return raw if isinstance(raw, RawReply) else RawReply(str(raw))
