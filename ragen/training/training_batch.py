"""Rows of tokens as tensors: padded on the left, cut into micro-batches of similar length."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from ragen.extras import needs
from ragen.training.trajectories import Group, TokenRow, Trajectory

with needs("train", "`ragen train`"):
    import torch
    from torch import Tensor

_SIMILAR = 1.25  # maximum ratio of the lengths of first prompts in a micro-batch


@dataclass(frozen=True)
class TrainingBatch:
    """Rows to train on, in the format of verl's algorithms.

    Column t of ``response_mask`` and everything in ``columns`` refers to token t + 1.

    Attributes:
        input_ids: int64 ``(rows, tokens)``, padded on the left.
        attention_mask: int64 ``(rows, tokens)``.
        response_mask: float32 ``(rows, tokens - 1)``, 1 at sampled tokens that this row trains on.
        uids: The group of each row.
        episodes: The trajectory of each row, numbered through the batch; most have one row.
        scores: float32 ``(rows,)``, the score of each row's trajectory.
        columns: More tensors ``(rows, tokens - 1)``, such as ``advantages``.
    """

    input_ids: Tensor
    attention_mask: Tensor
    response_mask: Tensor
    uids: np.ndarray
    episodes: list[int]
    scores: Tensor
    columns: dict[str, Tensor] = field(default_factory=dict)

    def __len__(self) -> int:
        return len(self.input_ids)

    @property
    def lengths(self) -> list[int]:
        """The number of tokens of each row."""
        return self.attention_mask.sum(-1).tolist()

    def first_prompt(self, row: int) -> list[int]:
        """A row's tokens before the first sampled one; all tokens if none was sampled."""
        start = self.input_ids.shape[1] - int(self.attention_mask[row].sum())
        chosen = self.response_mask[row].nonzero()
        return self.input_ids[row, start : int(chosen[0]) + 1 if len(chosen) else None].tolist()

    def with_columns(self, **columns: Tensor) -> TrainingBatch:
        """The batch with more tensors."""
        return replace(self, columns={**self.columns, **columns})

    def select(self, rows: Sequence[int]) -> TrainingBatch:
        """Some of the rows, without their common padding."""
        index = torch.tensor(rows, dtype=torch.int64)
        start = self.input_ids.shape[1] - int(self.attention_mask[index].sum(-1).max())
        return TrainingBatch(
            input_ids=self.input_ids[index, start:],
            attention_mask=self.attention_mask[index, start:],
            response_mask=self.response_mask[index, start:],
            uids=self.uids[list(rows)],
            episodes=[self.episodes[row] for row in rows],
            scores=self.scores[index],
            columns={name: column[index, start:] for name, column in self.columns.items()},
        )

    def first_rows(self) -> list[int]:
        """The first row of every trajectory."""
        return [row for row, episode in enumerate(self.episodes) if row == 0 or episode != self.episodes[row - 1]]

    def micro_batches(self, rows: Sequence[int], max_tokens: int) -> Iterator[list[int]]:
        """Rows in batches whose first prompts have similar lengths, with equal prompts adjacent.

        Args:
            rows: The rows.
            max_tokens: Maximum number of tokens of a batch, including padding; a single row may have more.
        """
        lengths, prompts = self.lengths, {row: self.first_prompt(row) for row in rows}
        pending: list[int] = []
        for row in sorted(rows, key=lambda row: (len(prompts[row]), prompts[row], lengths[row])):
            full = (len(pending) + 1) * max(lengths[other] for other in (*pending, row)) > max_tokens
            if pending and (full or len(prompts[row]) > _SIMILAR * len(prompts[pending[0]])):
                yield pending
                pending = []
            pending.append(row)
        if pending:
            yield pending


def training_batch(groups: Sequence[Group], pad_id: int) -> TrainingBatch:
    """The batch of all rows of all members of some groups.

    Args:
        groups: At least one, with rows.
        pad_id: The padding token.
    """
    members = [(group.uid, member) for group in groups for member in group.members]
    origins = [(episode, uid, member) for episode, (uid, member) in enumerate(members) for _ in member.rows]
    rows = [row for _, member in members for row in member.rows]
    return TrainingBatch(
        input_ids=left_padded([row.ids for row in rows], pad_id, torch.int64),
        attention_mask=left_padded([[1] * len(row.ids) for row in rows], 0, torch.int64),
        response_mask=left_padded([row.mask for row in rows], 0, torch.float32)[:, 1:].contiguous(),
        uids=np.array([uid for _, uid, _ in origins], dtype=object),
        episodes=[episode for episode, _, _ in origins],
        scores=torch.tensor([member.score for _, _, member in origins], dtype=torch.float32),
    )


def batch_of_rows(rows: Sequence[TokenRow], pad_id: int) -> TrainingBatch:
    """The batch of rows that belong to no group, such as demonstrations."""
    members = [Trajectory(0, "", 0.0, 0.0, [row]) for row in rows]
    return training_batch([Group("", members)], pad_id)


def left_padded(rows: Sequence[Sequence[float]], filler: float, dtype: torch.dtype) -> Tensor:
    """Rows as one tensor ``(rows, longest)``, padded on the left with ``filler``."""
    width = max(map(len, rows))
    tensor = torch.full((len(rows), width), filler, dtype=dtype)
    for place, row in enumerate(rows):
        tensor[place, width - len(row) :] = torch.tensor(row, dtype=dtype)
    return tensor
