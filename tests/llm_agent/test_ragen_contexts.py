"""Prompts, training rows, parsed replies and the loop of RAGEN itself, and ours with its prompts and its quirks.

The prompts are imported from checkouts of both generations, which lie beside the repository with the recorded data; a
test that asks for what is not there is skipped, and says so.
"""

from __future__ import annotations

import copy
import gzip
import importlib.util
import json
import tarfile
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from ragen.errors import ConfigError, InputError
from ragen.llm_agent.agent_proxy import LLMAgentProxy
from ragen.llm_agent.ctx_manager import ContextManager
from ragen.llm_agent.prompting.__main__ import main as prompting
from support.golden import GOLDEN

pytestmark = pytest.mark.models

CONTEXTS = GOLDEN / "contexts"
PEERS = GOLDEN.parent / "peers"
YEARS = {"up25": 2025, "up26": 2026}
FILES = [
    (path.parent.name, path.name.removesuffix(".jsonl.gz")) for path in sorted((CONTEXTS / "prompts").glob("*/*.gz"))
]
FILES = FILES or [("up25", "base")]  # one test that is skipped, where there are none
LOOPS = sorted(path.stem for path in (CONTEXTS / "loop").glob("rollout_*.json")) or ["rollout_sokoban_train"]

WRONG = {
    "update": "the line about invalid actions is in its prompts and not in its training texts",
    "window": "its windows shorten the history, and turns are counted from 1 again",
    "cut": "its cuts leave no room for the reply, or answers without their questions",
    "tag_SokobanDifferentGridVocab": "it tells the symbols of the default configuration",
    "coord_hint": "it tells the symbols of the default configuration",
    "edge": "histories that no environment manager makes",
}
"""Where ours differs without quirks, by the word that a line's setting, kind or file has, and why."""

Line = dict[str, Any]


@cache
def observe() -> ModuleType:
    """What of a batch was written down: the recorder's own module."""
    path = CONTEXTS / "observe.py"
    if not path.is_file():
        pytest.skip(f"{path} is not there")
    spec = importlib.util.spec_from_file_location("golden_observe", path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@cache
def tokenizer() -> Any:
    return observe().load_tokenizer(CONTEXTS / "tokenizer")


@pytest.fixture(scope="module")
def prompts(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """The file of prompts imported from a generation's checkout."""
    folder = tmp_path_factory.mktemp("prompts")

    @cache
    def imported(version: str) -> Path:
        archive = PEERS / f"ragen-{version}.tar.gz"
        if not archive.is_file():
            pytest.skip(f"{archive} is not there")
        with tarfile.open(archive) as packed:
            packed.extractall(folder, filter="data")
        out = folder / f"{version}.yaml"
        assert prompting(["import", str(folder / f"ragen-{version}"), str(out)]) == 0
        return out

    return imported


def lines(path: Path) -> Iterator[Line]:
    with gzip.open(path, "rt", encoding="utf-8", errors="surrogatepass") as file:
        yield from map(json.loads, file)


class Managers:
    """Context managers of one generation, each made once."""

    def __init__(self, version: str, prompts: Path, quirks: bool) -> None:
        self._version = version
        self._ours = {"agent_proxy.prompts": str(prompts), "generation": YEARS[version], "quirks": quirks}
        self._made: dict[str, ContextManager] = {}

    def get(self, config: str, overrides: dict[str, Any], mode: str = "train") -> ContextManager:
        key = json.dumps([config, overrides, mode])
        if key not in self._made:
            plain = json.loads((CONTEXTS / "configs" / self._version / f"{config}.json").read_text("utf-8"))
            whole = observe().make_config(plain, overrides | self._ours)
            self._made[key] = ContextManager(whole, tokenizer(), mode=mode)
        return self._made[key]


def replay(manager: ContextManager, line: Line) -> Any:
    """What ours makes of a line, in the notation of the recording; None where it refuses."""
    given = copy.deepcopy(line["in"])
    try:
        if line["kind"] == "infer":
            return {"rows": observe().infer(manager, tokenizer(), given)[0]}
        return json.loads(json.dumps(observe().update(manager, tokenizer(), given, **line.get("kwargs", {}))[0]))
    except InputError:
        return None


@pytest.mark.parametrize(("version", "name"), FILES)
def test_with_its_prompts_and_quirks_batches_are_those_of_ragen(version, name, prompts):
    same = observe().same
    managers, compared, differing = Managers(version, prompts(version), quirks=True), 0, []
    for line in lines(CONTEXTS / "prompts" / version / f"{name}.jsonl.gz"):
        compared += 1
        got = replay(managers.get(line["config"], line["overrides"], line["mode"]), line)
        wrong = None if got is None and "error" in line["out"] else got is None or same(line["out"], got)
        if wrong:
            differing.append((line["setting"], line["kind"], line["turn"], wrong))
    assert compared > 0 and differing == []


@pytest.mark.parametrize(("version", "name"), FILES)
def test_with_its_prompts_messages_are_those_of_ragen_but_where_it_is_wrong(version, name, prompts):
    managers, equal = Managers(version, prompts(version), quirks=False), 0
    for line in lines(CONTEXTS / "prompts" / version / f"{name}.jsonl.gz"):
        words = f"{name} {line['setting']} {line['kind']}"
        if any(word in words for word in WRONG if word != "update") or (version == "up26" and line["kind"] == "update"):
            continue
        manager = managers.get(line["config"], line["overrides"], line["mode"])
        get = manager.get_lm_inputs if line["kind"] == "infer" else manager.formulate_rollouts
        chats = get(copy.deepcopy(line["in"])).non_tensor_batch["messages_list"]
        assert [row["messages"] for row in line["out"]["rows"]] == list(chats), words
        equal += 1
    assert equal or name == "_edge"


def test_without_quirks_what_was_asked_is_what_is_learnt(prompts):
    managers = Managers("up26", prompts("up26"), quirks=False)
    update = next(
        line
        for line in lines(CONTEXTS / "prompts" / "up26" / "_2_sokoban.jsonl.gz")
        if line["kind"] == "update" and line["setting"] == "full"
    )
    manager = managers.get(update["config"], update["overrides"])
    learnt = manager.formulate_rollouts(update["in"]).non_tensor_batch["messages_list"]
    warned = 0
    for rollout, chat in zip(update["in"], learnt, strict=True):
        asked = {**rollout, "history": rollout["history"][:-1]}
        asked["history"][-1] = {
            key: value for key, value in asked["history"][-1].items() if key in ("state", "actions_left", "info")
        } | ({"manager_invalid_action": True} if rollout["history"][-2].get("manager_invalid_action") else {})
        prompt = manager.get_lm_inputs([asked]).non_tensor_batch["messages_list"][0]
        assert chat[:-1] == prompt
        warned += sum(bool(turn.get("manager_invalid_action")) for turn in asked["history"])
    assert warned


@pytest.mark.parametrize("version", YEARS)
@pytest.mark.parametrize("quirks", [True, False])
def test_replies_are_read_as_ragen_reads_them(version, quirks, prompts):
    path = CONTEXTS / "parse" / "both.jsonl.gz"
    if not path.is_file():
        pytest.skip(f"{path} is not there")
    managers, differing, compared = Managers(version, prompts(version), quirks), [], 0
    for line in lines(path):
        for result in line["results"]:
            overrides = {f"agent_proxy.{key}": value for key, value in result["settings"].items()}
            given = {"texts": [line["text"]]} if line["via"] == "text" else {"ids": [line["response_ids"]]}
            (got,) = observe().parse(managers.get("base", overrides), **given)
            compared += 1
            keys = got.keys() if quirks else ["actions"]
            if any(got[key] != result[key] for key in keys):
                differing.append(line["text"])
    assert compared > 1000
    assert all(is_forged(text) for text in differing) and (not quirks or not differing)


def is_forged(text: str) -> bool:
    """Whether tags within tags, once the inner ones are removed, make others: RAGEN then reads those."""
    return any(f"<{start}<" in text for start in ("an", "thi", "|im_", "/thi", "/an", "|im_start"))


@pytest.mark.parametrize("name", LOOPS)
def test_the_batch_of_a_rollout_is_that_of_ragen_2026(name, prompts):
    path = CONTEXTS / "loop" / f"{name}.json"
    if not path.is_file():
        pytest.skip(f"{path} is not there")
    recorded = json.loads(path.read_text("utf-8"))
    manager = Managers("up26", prompts("up26"), quirks=True).get(
        recorded["config"], recorded["overrides"], recorded["mode"]
    )
    manager.reset_memory_managers()
    states = copy.deepcopy(recorded["rollout_states"])
    include = recorded["include_collapse_data"]
    out, raw = observe().update(manager, tokenizer(), states, include_collapse_data=include)
    assert observe().same(recorded["update"], json.loads(json.dumps(out))) is None
    columns = raw.non_tensor_batch
    found = {key: observe().plain(value) for key, value in columns.items() if key in recorded["collapse"]}
    assert found == recorded["collapse"]
    if "val_columns" in recorded:
        assert observe().plain(columns["metrics"]) == recorded["val_columns"]["metrics"]
        assert list(columns["history"]) == [state["history"] for state in states]


@pytest.mark.parametrize("name", LOOPS)
def test_without_quirks_collapse_columns_are_those_of_ragen_but_for_the_warning(name, prompts):
    path = CONTEXTS / "loop" / f"{name}.json"
    if not path.is_file():
        pytest.skip(f"{path} is not there")
    recorded = json.loads(path.read_text("utf-8"))
    manager = Managers("up26", prompts("up26"), quirks=False).get(
        recorded["config"], recorded["overrides"], recorded["mode"]
    )
    states = copy.deepcopy(recorded["rollout_states"])
    for state in states:
        for turn in state["history"]:
            turn.pop("manager_invalid_action", None)
    batch = manager.formulate_rollouts(states, include_collapse_data=recorded["include_collapse_data"])
    columns = batch.non_tensor_batch
    found = {key: observe().plain(value) for key, value in columns.items() if key in recorded["collapse"]}
    assert found == recorded["collapse"]
    assert all(columns[key].ndim == 1 for key in columns)
    assert columns["env_ids"].dtype == columns["group_ids"].dtype == "int64"
    assert batch.batch["original_rm_scores"].equal(batch.batch["rm_scores"])
    if recorded["val"]:
        assert len(columns["history"]) == len(columns["metrics"]) == len(batch)


def test_quirks_are_refused_where_ragen_has_nothing_to_follow():
    config = json.loads((CONTEXTS / "configs" / "up25" / "base.json").read_text("utf-8")) if CONTEXTS.is_dir() else None
    if config is None:
        pytest.skip(f"{CONTEXTS} is not there")
    whole = observe().make_config(config, {"quirks": True, "agent_proxy.context_window_mode": "single_turn"})
    with pytest.raises(ConfigError, match="RAGEN of 2025 has no such mode"):
        ContextManager(whole, tokenizer())


class RecordedWorkers:
    """Says what the recorded model said, and remembers what it was told of each batch."""

    def __init__(self, states: list[Line], tag: str) -> None:
        self._said = {
            (state["env_id"], place): turn["llm_raw_response"].removeprefix(tag)
            for state in states
            for place, turn in enumerate(state["history"])
            if "llm_raw_response" in turn
        }
        self._turns = {state["env_id"]: 0 for state in states}
        self.told: list[tuple[str, bool]] = []
        self.given: list[Any] = []

    def generate_sequences(self, lm_inputs: Any) -> Any:
        from verl import DataProto

        self.given.append(observe().columns(lm_inputs))
        skip = lm_inputs.meta_info.get("skip_generation", False)
        self.told.append((lm_inputs.meta_info["mode"], skip))
        if skip:
            return lm_inputs
        env_ids = [int(env_id) for env_id in lm_inputs.non_tensor_batch["env_ids"]]
        texts = [self._said[env_id, self._turns[env_id]] for env_id in env_ids]
        for env_id in env_ids:
            self._turns[env_id] += 1
        columns = {key: lm_inputs.non_tensor_batch[key] for key in ("env_ids", "group_ids")}
        outputs = DataProto()
        outputs.non_tensor_batch = {**columns, "response_texts": texts}  # past DataProto's checks, as RAGEN's wrappers
        outputs.meta_info = lm_inputs.meta_info
        return outputs


def recorded_modes(recorded: Line) -> list[tuple[str, bool]]:
    calls = [call for call in recorded["calls"] if call["call"] == "proxy.generate_sequences"]
    told = [call["returns"]["DataProto"]["meta_info"] for call in calls]
    return [(each["mode"], each.get("skip_generation", False)) for each in told]


def recorded_batches(recorded: Line) -> list[Any]:
    """Dtype and shape of every column that workers of RAGEN were given, batch after batch."""
    calls = [call for call in recorded["calls"] if call["call"] == "proxy.generate_sequences"]
    given = [call["args"][0]["DataProto"] for call in calls]
    return [{kind: batch[kind] for kind in ("batch", "non_tensor")} for batch in given]


@pytest.mark.parametrize("quirks", [True, False])
@pytest.mark.parametrize("name", LOOPS)
def test_the_loop_tells_workers_and_callers_what_ragen_tells_them(name, quirks, prompts):
    from verl import DataProto

    path = CONTEXTS / "loop" / f"{name}.json"
    if not path.is_file():
        pytest.skip(f"{path} is not there")
    recorded = json.loads(path.read_text("utf-8"))
    plain = json.loads((CONTEXTS / "configs" / "up26" / f"{recorded['config']}.json").read_text("utf-8"))
    if "Countdown" in plain["custom_envs"]:
        data = {"train_path": str(GOLDEN / "inputs" / "countdown" / "train.parquet")}
        plain["custom_envs"]["Countdown"]["env_config"] = data
    if "Bandit" in plain["custom_envs"]:
        plain["custom_envs"]["Bandit"]["env_type"] = "support.counted_bandit:CountedBandit"
    ours = {"agent_proxy.prompts": str(prompts("up26")), "generation": 2026, "quirks": quirks}
    config = observe().make_config(plain, recorded["overrides"] | ours)
    tag = "<think>" if config.agent_proxy.enable_think else "<answer>"
    workers = RecordedWorkers(recorded["rollout_states"], tag)
    meta_info = dict(recorded["meta_info_given"])
    if not recorded["include_collapse_data"]:
        meta_info["compute_collapse"] = False
    with LLMAgentProxy(config, workers, tokenizer()) as proxy:
        batch = proxy.rollout(DataProto(meta_info=meta_info), val=recorded["val"])
        states = proxy.rollout_states
    assert workers.told == recorded_modes(recorded)
    added = {key: value for key, value in meta_info.items() if key not in recorded["meta_info_given"]}
    after = {
        key: value
        for key, value in recorded["meta_info_given_afterwards"].items()
        if key in ("mode", "skip_generation")
    }
    added.pop("compute_collapse", None)
    assert added == (after if quirks else {})
    assert len(batch) == len(recorded["update"]["rows"])
    own = {"tags", "turns"} & {column for given in workers.given for column in given["non_tensor"]}
    assert own == (set() if quirks else {"tags", "turns"})
    if quirks and "Bandit" not in plain["custom_envs"]:  # whose levels depend on what its process built before
        assert workers.given == recorded_batches(recorded)
        assert observe().plain(states) == recorded["rollout_states"]
        assert observe().columns(batch) == recorded["update"]["columns"]
