"""What RAGEN's context managers make of rollouts, and what ours makes of the same ones; held against digests.

With our own prompts replies are read alike, the same text is learnt, and scores and metrics are the same. With RAGEN's
prompts everything is, to the token: they are read off a checkout of RAGEN, which the environment variables
``RAGEN_UP25`` and ``RAGEN_UP26`` name (or which lies in ``../shared/peers``); without one those tests are skipped.
"""

from __future__ import annotations

import os
import tarfile
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from omegaconf import OmegaConf

from ragen.llm_agent.ctx_manager import ContextManager
from ragen.llm_agent.prompting.__main__ import main as prompting
from ragen.llm_agent.tokenizer import load_tokenizer
from support import context_facts, reference_facts

Record = dict[str, Any]

RECORDED = reference_facts.records("contexts")
SETTINGS = [record for record in RECORDED if "setting" in record]
READINGS = [record for record in RECORDED if "reading" in record]
PEERS = Path(__file__).resolve().parents[3] / "shared" / "peers"
YEARS = {"up25": 2025, "up26": 2026}


def name_of(record: Record) -> str:
    return f"{record['version']}-{record.get('setting') or record.get('reading')}"


@cache
def tokenizer() -> Any:
    found = load_tokenizer()
    found.name_or_path = "qwen-small"
    return found


def manager(overrides: Record, ours: Record | None = None) -> ContextManager:
    config = OmegaConf.create(context_facts.config(overrides))
    for key, value in (ours or {}).items():
        OmegaConf.update(config, key, value, force_add=True)
    return ContextManager(config, tokenizer(), mode="train")


def test_both_generations_and_all_settings_were_recorded() -> None:
    for version in reference_facts.VERSIONS:
        settings = {record["setting"] for record in SETTINGS if record["version"] == version}
        assert settings == set(context_facts.settings_of(version))
    assert all(len(record["replies"]) == len(context_facts.replies()) for record in READINGS)


@pytest.mark.parametrize("record", READINGS, ids=name_of)
def test_replies_are_read_as_the_reference_reads_them(record: Record) -> None:
    reader = manager(context_facts.READINGS[record["reading"]])
    for text, (tidied, actions) in zip(context_facts.replies(), record["replies"], strict=True):
        ours = context_facts.read_facts(reader, text)
        assert ours[1] == actions, text
        if not text.startswith("<answer>"):  # a tag twice, of which ours takes out the one that the model wrote
            assert ours[0] == tidied, text
    assert len({tidied for tidied, _ in record["replies"]}) > 20


FULL = [record for record in SETTINGS if record["setting"] in context_facts.SETTINGS]


@pytest.mark.parametrize("record", FULL, ids=name_of)
def test_the_same_text_is_learnt_for_the_same_scores(record: Record) -> None:
    overrides = context_facts.settings_of(record["version"])[record["setting"]]
    states = context_facts.rollouts(overrides)
    batch = context_facts.batch_facts(manager(overrides), tokenizer(), states)
    expected = record["batch"]
    for row, theirs, state in zip(batch["rows"], expected["rows"], states, strict=True):
        if record["setting"] != "learn_all":  # there prompts are learnt as well, which are our own
            assert row["said"] == theirs["said"]
        score = theirs["scores"]["rm_scores"]
        if record["setting"] == "turn_scores":  # which the reference leaves penalties out of
            score += state["penalty"]
        assert row["scores"]["rm_scores"] == pytest.approx(score, rel=1e-6)
    common = set(batch["metrics"]) & set(expected["metrics"]) - {"response_length"}
    assert {f"{tag}/{name}" for tag in context_facts.TAGS for name in ("success", "num_actions", "pass@2")} <= common
    for key in common:
        assert batch["metrics"][key] == pytest.approx(expected["metrics"][key]), key


# With RAGEN's prompts


@pytest.fixture(scope="module")
def prompts(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """The prompts of a generation, imported from a checkout."""
    folder = tmp_path_factory.mktemp("checkouts")

    @cache
    def imported(version: str) -> Path:
        checkout, archive = os.environ.get(f"RAGEN_{version.upper()}"), PEERS / f"ragen-{version}.tar.gz"
        if checkout is None:
            if not archive.is_file():
                pytest.skip(f"RAGEN_{version.upper()} names no checkout of RAGEN")
            with tarfile.open(archive) as packed:
                packed.extractall(folder, filter="data")
            checkout = str(folder / f"ragen-{version}")
        assert prompting(["import", checkout, str(folder / f"{version}.yaml")]) == 0
        return folder / f"{version}.yaml"

    return imported


@pytest.mark.parametrize("record", READINGS, ids=name_of)
def test_with_its_prompts_and_quirks_every_reply_is_read_as_the_reference_reads_it(
    record: Record, prompts: Callable[[str], Path]
) -> None:
    version = record["version"]
    ours = {"agent_proxy.prompts": str(prompts(version)), "generation": YEARS[version], "quirks": True}
    reader = manager(context_facts.READINGS[record["reading"]], ours)
    assert [context_facts.read_facts(reader, text) for text in context_facts.replies()] == record["replies"]


@pytest.mark.parametrize("record", SETTINGS, ids=name_of)
def test_with_its_prompts_every_token_and_column_is_that_of_the_reference(
    record: Record, prompts: Callable[[str], Path]
) -> None:
    version = record["version"]
    overrides = context_facts.settings_of(version)[record["setting"]]
    ours = {"agent_proxy.prompts": str(prompts(version)), "generation": YEARS[version], "quirks": True}
    found = context_facts.settings_facts(manager(overrides, ours), tokenizer(), overrides)
    assert found["prompts"] == record["prompts"]
    batch, expected = found["batch"], record["batch"]
    for row, theirs in zip(batch["rows"], expected["rows"], strict=True):
        scores, recorded = row.pop("scores"), dict(theirs["scores"])
        assert scores == pytest.approx(recorded, rel=1e-6)
        assert row == {key: value for key, value in theirs.items() if key != "scores"}
    assert batch["metrics"] == pytest.approx(expected["metrics"])
    assert batch["columns"] == expected["columns"]


HOUSES = [record for record in SETTINGS if record["setting"].startswith("house_")]


@pytest.mark.parametrize("record", HOUSES, ids=name_of)
def test_with_its_prompts_turns_of_alfworld_are_told_as_the_reference_tells_them_without_quirks_too(
    record: Record, prompts: Callable[[str], Path]
) -> None:
    overrides = context_facts.settings_of("up26")[record["setting"]]
    ours = {"agent_proxy.prompts": str(prompts("up26")), "generation": 2026}
    states = [state for state in context_facts.rollouts(overrides) if state["tag"] == "Depot"]
    plays = [(state, turns) for state, most in zip(states, (4, 3), strict=True) for turns in range(most)]
    told = {context_facts.prompt_facts(manager(overrides, ours), *play)["messages"] for play in plays}
    assert len(told) == 7 and told <= {prompt["messages"] for prompt in record["prompts"]}
