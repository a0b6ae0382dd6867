"""RAGEN 2026's loop: what it tells the workers of each batch, and the columns of its batches."""

from __future__ import annotations

from typing import Any

import pytest
from omegaconf import OmegaConf

from ragen.llm_agent.agent_proxy import LLMAgentProxy
from ragen.llm_agent.tokenizer import load_tokenizer
from support import context_facts, reference_facts
from support.later import verl

LOOPS = reference_facts.records("loops")


class Workers:
    """Says one thing, and remembers what it was told of each batch."""

    def __init__(self, says: str) -> None:
        self._says = says
        self.told: list[list[Any]] = []

    def generate_sequences(self, lm_inputs: Any) -> Any:
        skip = lm_inputs.meta_info.get("skip_generation", False)
        self.told.append([lm_inputs.meta_info["mode"], skip])
        if skip:
            return lm_inputs
        columns = {key: lm_inputs.non_tensor_batch[key] for key in ("env_ids", "group_ids")}
        outputs = verl.DataProto()
        outputs.non_tensor_batch = {**columns, "response_texts": [self._says] * len(columns["env_ids"])}
        outputs.meta_info = lm_inputs.meta_info
        return outputs


def is_short(loop: dict[str, Any]) -> bool:
    return set(loop["turns"]) == {1}


def config_of(loop: dict[str, Any]) -> Any:
    """A rollout as long as the recorded one: over after one action where that was, else a lake that nobody crosses."""
    whole = context_facts.config({f"agent_proxy.{key}": value for key, value in loop["proxy"].items()})
    for tag in context_facts.TAGS:
        whole["custom_envs"][tag] |= {"env_type": "frozen_lake", "max_actions_per_traj": 1 if is_short(loop) else 8}
    detection = {"first_turn_enabled": True, "multi_turn_enabled": True}
    return OmegaConf.create(whole | {"collapse_detection": detection})


def test_one_turn_many_turns_an_early_end_and_validation_were_recorded() -> None:
    assert {len(loop["told"]) for loop in LOOPS} >= {1, 2, 3, 4, 5}
    assert [loop["val"] for loop in LOOPS].count(True) == 1
    assert any(loop["told"][-1] == ["multiturn-end", True] for loop in LOOPS)


@pytest.mark.parametrize("loop", LOOPS, ids=lambda loop: loop["name"])
def test_workers_are_told_and_batches_are_made_as_in_ragen_2026(loop: dict[str, Any]) -> None:
    workers = Workers("</think><answer>Left</answer>" if is_short(loop) else "</think><answer></answer>")
    meta_info = {"validate": loop["val"]} | ({} if loop["collapse"] else {"compute_collapse": False})
    given = dict(meta_info)
    with LLMAgentProxy(config_of(loop), workers, load_tokenizer()) as proxy:
        batch = proxy.rollout(verl.DataProto(meta_info=meta_info), val=loop["val"])
    assert workers.told == loop["told"]
    assert meta_info == given
    assert (
        loop["batch"].items()
        <= {key: str(value.dtype).removeprefix("torch.") for key, value in batch.batch.items()}.items()
    )
    assert loop["columns"].items() <= {key: str(value.dtype) for key, value in batch.non_tensor_batch.items()}.items()
