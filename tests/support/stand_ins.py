"""Stand-ins for models: replies that follow from the prompt alone, in the forms in which actors answer."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from typing import Any

from ragen.llm_agent.batches.dataproto import object_array

MOVES = ("up", "down", "left", "right")


def any_move(prompt: str) -> str:
    """A move that the prompt decides; now and then none."""
    number = hashlib.sha256(prompt.encode()).digest()[0]
    return f"<think>so</think><action>{MOVES[number % 4]}</action>" if number % 7 else "I do not know."


class StandInWorkers:
    """A worker group: answers with tokens, in verl's columns, and takes only multiples of its size.

    Attributes:
        asked: The environments of each batch, without those that fill it up.
    """

    def __init__(self, tokenizer: Any, reply: Callable[[str], str] = any_move, world_size: int = 3) -> None:
        self.tokenizer, self.reply, self.world_size = tokenizer, reply, world_size
        self.asked: list[list[int]] = []
        self.width = 48

    def generate_sequences(self, prompts: Any) -> Any:
        import torch
        from verl import DataProto

        assert len(prompts) % self.world_size == 0
        env_ids = prompts.non_tensor_batch.get("env_ids", range(len(prompts)))
        self.asked.append(list(dict.fromkeys(map(int, env_ids))))
        ids, mask = prompts.batch["input_ids"], prompts.batch["attention_mask"]
        texts = [self.tokenizer.decode(row[seen.bool()]) for row, seen in zip(ids, mask, strict=True)]
        replies = [self.tokenizer(self.reply(text), add_special_tokens=False)["input_ids"] for text in texts]
        replies = [[*each, self.tokenizer.eos_token_id] for each in replies]
        pad = self.tokenizer.pad_token_id
        responses = torch.tensor([each + [pad] * (self.width - len(each)) for each in replies])
        seen = torch.tensor([[1] * len(each) + [0] * (self.width - len(each)) for each in replies])
        positions = prompts.batch["position_ids"]
        following = positions[:, -1:] + torch.arange(1, self.width + 1)
        return DataProto.from_dict(
            tensors={
                "prompts": ids,
                "responses": responses,
                "input_ids": torch.cat([ids, responses], -1),
                "attention_mask": torch.cat([mask, seen], -1),
                "position_ids": torch.cat([positions, following], -1),
                "rollout_log_probs": -seen.float(),
            }
        )


class StandInActor:
    """An actor that answers with texts, and with errors where the reply is None."""

    def __init__(self, reply: Callable[[str], str | None] = any_move) -> None:
        self.reply = reply
        self.asked: list[list[int]] = []

    def generate_sequences(self, prompts: Any) -> Any:
        from verl import DataProto

        self.asked.append(list(map(int, prompts.non_tensor_batch["env_ids"])))
        texts = [self.reply(chat[0]["content"]) for chat in prompts.non_tensor_batch["messages_list"]]
        return DataProto.from_dict(
            tensors=None,
            non_tensors={
                "response_texts": object_array(texts),
                "errors": object_array("no reply" if text is None else None for text in texts),
            },
        )
