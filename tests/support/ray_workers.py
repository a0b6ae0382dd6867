"""A worker of verl's, in a Ray actor, whose model is the stand-in."""

from __future__ import annotations

from typing import Any

from verl.single_controller.base import Worker
from verl.single_controller.base.decorator import Dispatch, register

from ragen.llm_agent.tokenizer import load_tokenizer
from support.stand_ins import StandInWorkers


class AnsweringWorker(Worker):
    """Answers its part of a batch, and remembers how many rows each had."""

    def __init__(self) -> None:
        super().__init__()
        self.model = StandInWorkers(load_tokenizer(), world_size=1)
        self.parts: list[int] = []

    @register(dispatch_mode=Dispatch.DP_COMPUTE_PROTO)
    def generate_sequences(self, prompts: Any) -> Any:
        self.parts.append(len(prompts))
        return self.model.generate_sequences(prompts)

    @register(dispatch_mode=Dispatch.ONE_TO_ALL)
    def seen(self) -> list[int]:
        return self.parts
