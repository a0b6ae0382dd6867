"""The reference's rollouts, replayed through the manager with environments in the main process and in lanes.

Left out: environments whose level took the reference's hash-dependent retry, tags of types that are not here, what our
manager, like RAGEN 2026's, adds to RAGEN 2025's rollouts, and RAGEN 2026's metrics of infos that are no numbers.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator
from typing import Any

import pytest

from ragen.env import REGISTERED_ENVS
from ragen.errors import InputError
from ragen.llm_agent.es_manager import EnvStateManager
from ragen.llm_agent.testing.equivalence import Recording
from support import counted_bandit, golden
from support.reference_facts import DEFAULTS_OF_UP26, end_of_2025, turn_of_2025

Record = dict[str, Any]

MODES = {"main": {"use_multiprocessing": False}, "lanes": {"use_multiprocessing": True, "max_workers": 2}}
VERSIONS = ("up25", "up26")
TAGS = [(version, tag) for version in VERSIONS for tag in golden.tags(version, "rollouts") if tag != "_offcontract"]
SHOPS = [("up25", "webshop_synth"), ("up25", "webshop_small1000"), ("up26", "webshop_synth")]

TEXTS = {"answer", "extracted_answer", "query"}  # some of which read as numbers
COMPAT = {"up25": {}, "up26": {"compat": "up26"}}


# The configuration of a session


def custom_env(version: str, tag: str) -> Record:
    """The tag's entry in ``custom_envs``; a tag that only the off-contract sessions have is like its namesake."""
    entry = copy.deepcopy(golden.template(version, tag.removesuffix("Multi")))
    fields = dict(entry["env_config"] or {})
    if version == "up26":
        fields = DEFAULTS_OF_UP26.get(entry["env_type"], {}) | fields
        if entry["env_type"] == "bandit":
            entry["env_type"] = "support.counted_bandit:CountedBandit"
    for key in ("train_path", "dataset_path"):
        if key in fields:
            fields[key] = str(golden.GOLDEN / fields[key])
    fields.pop("cache_dir", None)
    return entry | {"env_config": fields}


def shop(version: str, folder: str) -> Record:
    fields = {"data_dir": str(golden.golden_file("inputs", folder)), **COMPAT[version]}
    return {"env_type": "webshop", "env_config": fields}


def manager_config(header: Record, custom_envs: dict[str, Record], settings: Record) -> Record:
    mode, tags = header["mode"], header["tags"]
    entries = {tag: custom_envs[tag] | {"max_actions_per_traj": header["max_actions"][tag]} for tag in tags}
    part = {
        "env_groups": sum(header["n_groups"]),
        "group_size": header["group_size"],
        "env_configs": {"tags": tags, "n_groups": header["n_groups"]},
    }
    es_manager = {mode: part, "format_penalty": header["format_penalty"], **settings}
    return {"seed": {mode: header["base_seed"]}, "custom_envs": entries, "es_manager": es_manager}


# What is compared, of the golden and of ours


def reset_record(manager: EnvStateManager, cache: Record) -> Record:
    shown = {key: cache[key] for key in ("env_id", "group_id", "tag", "penalty")}
    return shown | {"seed": manager.envs[cache["env_id"]]["status"].seed} | _open_entry(cache)


def turn_record(manager: EnvStateManager, env_id: int) -> Record:
    cache = manager.rollout_cache[env_id]
    played = cache["history"][-2]
    given = {key: played[key] for key in ("actions", "reward", "info", "llm_response", "llm_raw_response")}
    given["executed"] = given.pop("actions")
    return {"env_id": env_id, **given, **_status(manager, env_id), "penalty": cache["penalty"], **_open_entry(cache)}


def final_record(manager: EnvStateManager, cache: Record) -> Record:
    history = cache["history"]
    if cache["tag"] != "MetamathQA":  # the reference tells the answer under this tag alone
        cache = {key: value for key, value in cache.items() if key != "correct_answer"}
    shown = {
        key: cache[key] for key in ("env_id", "group_id", "tag", "penalty", "metrics", "correct_answer") if key in cache
    }
    return {
        **shown,
        **_status(manager, cache["env_id"]),
        "turn_metrics": history[-1]["metrics"],
        "history_len": len(history),
        "history_keys": [sorted(entry) for entry in history],
    }


def _status(manager: EnvStateManager, env_id: int) -> Record:
    return {"status": dict(vars(manager.envs[env_id]["status"]))}


def _open_entry(cache: Record) -> Record:
    entry = cache["history"][-1]
    shown = {key: entry[key] for key in ("state", "actions_left")}
    if "images" in entry:
        shown["images"] = [{"shape": [im.height, im.width, 3], "mode": im.mode} for im in entry["images"]]
    return shown


def _without_additions(record: Record) -> Record:
    """A record of ours without what RAGEN 2025's manager does not write."""
    if "info" in record:
        return turn_of_2025(record)
    return end_of_2025(record) if "turn_metrics" in record else record


def _golden_record(record: Record) -> Record:
    """A golden record without what describes the reference alone."""
    if "turn_metrics" in record:
        texts = TEXTS | {key for key, values in record["turn_metrics"].items() if not values}
        metrics = {key: value for key, value in record["metrics"].items() if key.partition("/")[2] not in texts}
        turns = {key: values for key, values in record["turn_metrics"].items() if key not in texts}
        record = record | {"metrics": metrics, "turn_metrics": turns}
    kept = {key: value for key, value in record.items() if key not in ("retry", "actions", "state_extra", "turn_extra")}
    if "images" in kept:  # the art is our own
        kept["images"] = [{"shape": image["shape"], "mode": image["mode"]} for image in kept["images"]]
    return kept


# The replay


class Replay:
    """One session, and the facts of both sides."""

    def __init__(self, manager: EnvStateManager, version: str) -> None:
        self.manager = manager
        self._is_2025 = version == "up25"
        self.golden, self.ours = Recording(), Recording()
        self._left_out: set[int] = set()
        self._lost: set[int] = set()

    def play(self, events: list[Record]) -> None:
        for event in events:
            getattr(self, f"_{event['kind']}")(event)

    def _reset(self, event: Record) -> None:
        self._left_out = {entry["env_id"] for entry in event["envs"] if entry["retry"]}
        self._lost = set()
        assert self.manager.seed_counter == event["seed_counter_before"]
        caches = self.manager.reset(event["seed_arg"])
        assert self.manager.seed_counter == event["seed_counter_after"]
        assert [cache["env_id"] for cache in caches] == [entry["env_id"] for entry in event["envs"]]
        self._compare(f"reset {event['r']}", event["envs"], [reset_record(self.manager, cache) for cache in caches])

    def _step(self, event: Record) -> None:
        played = [entry for entry in event["envs"] if entry["env_id"] not in self._left_out]
        going_on, over = [], []
        for entry in played:
            (over if self._is_over(entry["env_id"]) else going_on).append(entry)
        if over:
            self._refuse(played)
            self._lost |= {entry["env_id"] for entry in over}
        outputs = self.manager.step([_input(entry) for entry in going_on])
        ours = [cache["env_id"] for cache in outputs]
        assert ours == [env_id for env_id in event["outputs"] if env_id not in self._left_out | self._lost]
        records = [turn_record(self.manager, entry["env_id"]) for entry in going_on]
        self._compare(f"reset {event['r']}, turn {event['turn']}", going_on, records)

    def _refuse(self, played: list[Record]) -> None:
        """Stepping an environment whose episode is over: nothing is stepped, whatever else is in the call."""
        before = Recording()
        before.note("cache", self.manager.rollout_cache)
        with pytest.raises(InputError, match=r"episode .* is over"):
            self.manager.step([_input(entry) for entry in played])
        after = Recording()
        after.note("cache", self.manager.rollout_cache)
        assert before.first_difference(after) == ""

    def _final(self, event: Record) -> None:
        caches = self.manager.get_rollout_states()
        self._compare(f"final {event['r']}", event["envs"], [final_record(self.manager, cache) for cache in caches])

    def _is_over(self, env_id: int) -> bool:
        return self.manager.envs[env_id]["status"].terminated

    def _compare(self, where: str, golden_records: list[Record], ours: list[Record]) -> None:
        for record, mine in zip(golden_records, ours, strict=True):
            env_id = record["env_id"]
            if env_id in self._left_out | self._lost:
                continue
            self.golden.note(f"{where}, env {env_id}", _ordered(_golden_record(record)))
            self.ours.note(f"{where}, env {env_id}", _ordered(_without_additions(mine) if self._is_2025 else mine))


def _input(entry: Record) -> Record:
    return {key: entry[key] for key in ("env_id", "actions", "llm_response", "llm_raw_response")}


def _ordered(record: Record) -> Record:
    """With keys in one order; infos and metrics keep their own."""
    return {key: record[key] for key in sorted(record)}


def replay(version: str, session: golden.Session, custom_envs: dict[str, Record], mode: str) -> None:
    counted_bandit.forget_built()
    config = manager_config(session.header, custom_envs, MODES[mode])
    with EnvStateManager(config, mode=session.header["mode"]) as manager:
        both = Replay(manager, version)
        both.play(session.events)
        assert len(both.golden.facts) >= len(session.events)
        assert both.golden.first_difference(both.ours) == ""
        assert bool(manager.lane_stats()[0].turns) == (mode == "main")


@pytest.fixture(scope="module", autouse=True)
def warm_lanes() -> Iterator[None]:
    """Workers that stay while managers come and go."""
    custom_envs = {"Keeper": {"env_type": "bandit", "max_actions_per_traj": 1}}
    part = {"env_groups": 2, "group_size": 1, "env_configs": {"tags": ["Keeper"], "n_groups": [2]}}
    with EnvStateManager({"custom_envs": custom_envs, "es_manager": {"train": part, **MODES["lanes"]}}):
        yield


def _skip_unknown(custom_envs: dict[str, Record]) -> None:
    for tag, entry in custom_envs.items():
        if entry["env_type"] not in REGISTERED_ENVS and ":" not in entry["env_type"]:
            pytest.skip(f"{tag}: there is no environment type {entry['env_type']!r} here")


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize(("version", "tag"), TAGS)
def test_rollouts_are_those_of_the_reference(version: str, tag: str, mode: str) -> None:
    for session in golden.sessions(version, tag):
        custom_envs = {name: custom_env(version, name) for name in session.header["tags"]}
        _skip_unknown(custom_envs)
        replay(version, session, custom_envs, mode)


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("version", VERSIONS)
def test_stepping_on_after_the_end_is_refused_and_all_else_is_as_in_the_reference(version: str, mode: str) -> None:
    for session in golden.sessions(version, "_offcontract"):
        custom_envs = {name: custom_env(version, name) for name in session.header["tags"]}
        replay(version, session, custom_envs, mode)


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize(("version", "folder"), SHOPS)
def test_shopping_is_as_in_the_reference(version: str, folder: str, mode: str) -> None:
    for session in golden.sessions_in(version, folder, "rollouts.jsonl.gz"):
        replay(version, session, {"WebShop": shop(version, folder)}, mode)
