"""What RAGEN's context managers make of rollouts, and what ours makes of the same ones; held against digests.

Prompts are our own. Replies are read alike, the same text is learnt, and scores and metrics are the same.
"""

from __future__ import annotations

from functools import cache
from typing import Any

import pytest
from omegaconf import OmegaConf

from ragen.llm_agent.ctx_manager import ContextManager
from ragen.llm_agent.tokenizer import load_tokenizer
from support import context_facts, reference_facts

Record = dict[str, Any]

RECORDED = reference_facts.records("contexts")
SETTINGS = [record for record in RECORDED if "setting" in record]
READINGS = [record for record in RECORDED if "reading" in record]


def name_of(record: Record) -> str:
    return f"{record['version']}-{record.get('setting') or record.get('reading')}"


@cache
def tokenizer() -> Any:
    return load_tokenizer()


def manager(overrides: Record) -> ContextManager:
    return ContextManager(OmegaConf.create(context_facts.config(overrides)), tokenizer(), mode="train")


@pytest.mark.parametrize("record", READINGS, ids=name_of)
def test_replies_are_read_as_the_reference_reads_them(record: Record) -> None:
    reader = manager(context_facts.READINGS[record["reading"]])
    for text, (tidied, actions) in zip(context_facts.replies(), record["replies"], strict=True):
        ours = context_facts.read_facts(reader, text)
        assert ours[1] == actions, text
        if not text.startswith("<answer>"):  # a tag twice, of which ours takes out the one that the model wrote
            assert ours[0] == tidied, text
    assert len({tidied for tidied, _ in record["replies"]}) > 20


@pytest.mark.parametrize("record", SETTINGS, ids=name_of)
def test_the_same_text_is_learnt_for_the_same_scores(record: Record) -> None:
    overrides = context_facts.SETTINGS[record["setting"]]
    states = context_facts.rollouts(overrides)
    batch = context_facts.batch_facts(manager(overrides), tokenizer(), states)
    for row, theirs, state in zip(batch["rows"], record["rows"], states, strict=True):
        if record["setting"] != "learn_all":  # there prompts are learnt as well, which are our own
            assert row["said"] == theirs["said"]
        penalty = state["penalty"] if record["setting"] == "turn_scores" else 0  # which the reference leaves out there
        assert row["score"] == pytest.approx(theirs["score"] + penalty, rel=1e-6)
    common = set(batch["metrics"]) & set(record["metrics"]) - {"response_length"}
    assert {f"{tag}/{name}" for tag in context_facts.TAGS for name in ("success", "num_actions", "pass@2")} <= common
    for key in common:
        assert batch["metrics"][key] == pytest.approx(record["metrics"][key]), key
