"""Who answers in these tests: stand-ins for verl's server client, and a whole loop without Ray."""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import Callable
from random import Random
from typing import Any

from omegaconf import OmegaConf

from ragen.errors import EnvError
from ragen.llm_agent.tokenizer import load_tokenizer

Policy = Callable[[str, Random], str]
MOVES = ("Left", "Down", "Right", "Up")


def wander(prompt: str, draws: Random) -> str:
    """One to three moves, after a thought; now and then nothing that can be read."""
    if draws.random() < 0.15:
        return draws.choice(("I would rather not.", "left</think><answer>", "hm</think><answer>Sideways</answer>"))
    moves = " || ".join(draws.choice(MOVES) for _ in range(draws.randint(1, 3)))
    return f"Step {draws.randint(1, 99)} it is.</think><answer>{moves}</answer>"


class StandInClient:
    """Answers as verl's ``LLMServerClient`` does: tokens in, tokens and log-probabilities out.

    A reply is a function of the prompt alone, so trajectories do not depend on the order of requests.
    """

    def __init__(self, tokenizer: Any, policy: Policy = wander, ends: bool = True) -> None:
        self.tokenizer = tokenizer
        self.policy = policy
        self.ends = ends
        self.calls: list[dict[str, Any]] = []
        self.before_answer: Callable[[int], None] | None = None
        self.delay = 0.0

    async def generate(
        self, request_id: str, *, prompt_ids: list[int], sampling_params: dict[str, Any], **_: Any
    ) -> Any:
        from verl.workers.rollout.replica import TokenOutput

        await asyncio.sleep(self.delay)
        if self.before_answer is not None:
            self.before_answer(len(self.calls))
        draws = Random(hashlib.sha256(f"0 {prompt_ids}".encode()).digest())
        text = self.policy(self.tokenizer.decode(prompt_ids), draws)
        tokens = self.tokenizer(text, add_special_tokens=False)["input_ids"]
        tokens = [*tokens, self.tokenizer.eos_token_id] if self.ends else tokens
        tokens = tokens[: sampling_params["max_tokens"]]
        log_probs = [-draws.random() for _ in tokens] if sampling_params.get("logprobs") else None
        self.calls.append(
            {"request_id": request_id, "prompt_ids": list(prompt_ids), "reply": tokens, "log_probs": log_probs}
            | {"sampling_params": sampling_params}
        )
        step = len(self.calls)
        return TokenOutput(
            token_ids=tokens,
            log_probs=log_probs,
            stop_reason="completed",
            extra_fields={"global_steps": step, "min_global_steps": step, "max_global_steps": step},
        )


def trainer_config(ragen: dict[str, Any], prompt_length: int = 1500, response_length: int = 2000) -> Any:
    """As much of the trainer's configuration as a loop reads."""
    rollout = {"prompt_length": prompt_length, "response_length": response_length}
    return OmegaConf.create({"actor_rollout_ref": {"rollout": rollout}, "data": {}, "ragen": ragen})


def make_loop(config: Any, client: Any) -> Any:
    """A loop as verl's worker makes it; to be called inside an event loop."""
    from verl.experimental.agent_loop.agent_loop import DictConfigWrap

    from ragen.agent_loop.loop import RagenEnvLoop

    return RagenEnvLoop(
        trainer_config=DictConfigWrap(config),
        server_manager=client,
        tokenizer=client.tokenizer,
        processor=None,
        dataset_cls=None,
        data_config=DictConfigWrap(config.data),
        hf_model_type="qwen2",
        tools=None,
    )


def service_of(config: Any, client: Any) -> Any:
    """The environments' service that all loops of a configuration share."""
    from ragen.agent_loop.loop import shared_parts

    return shared_parts(config, client.tokenizer).service


def play(
    config: Any, client: Any, rows: list[tuple[str, int]], mode: str = "train", step: int = 0, **sampling: Any
) -> list[Any]:
    """Play trajectories, all at once, and shut the service down; the loops' outputs."""

    async def session() -> list[Any]:
        loops = [make_loop(config, client) for _ in rows]
        service = service_of(config, client)
        try:
            runs = [
                loop.run(
                    {"temperature": 1.0, "logprobs": True, **sampling},
                    extra_info={"tag": tag, "seed": seed, "mode": mode},
                    global_steps=step,
                )
                for loop, (tag, seed) in zip(loops, rows, strict=True)
            ]
            outputs = await asyncio.gather(*runs, return_exceptions=True)
            for output in outputs:
                if isinstance(output, BaseException) and not isinstance(output, EnvError):
                    raise output
            return outputs
        finally:
            await service.shut_down()

    return asyncio.run(session())


def tokenizer() -> Any:
    """The one that comes with the package."""
    return load_tokenizer()
