"""RAGEN's own runs, held against digests that every clone has: environments, shops and whole rollouts.

``tests/data/reference/README.md`` says what was kept of which recording. The large recordings themselves are compared,
text by text, where they are at hand (``test_golden_rollouts.py``).
"""

from __future__ import annotations

from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest

from ragen.env import REGISTERED_ENV_CONFIGS, REGISTERED_ENVS
from ragen.env.countdown.config import CountdownEnvConfig
from ragen.env.countdown.env import CountdownEnv
from ragen.env.webshop.goals import GoalTable, split_order, split_place
from ragen.errors import InputError
from ragen.llm_agent.es_manager import EnvStateManager
from support import counted_bandit
from support import reference_facts as facts

Record = dict[str, Any]

TAGS = sorted(facts.tags())
SHOPS = [record for record in facts.records("envs") if record.get("kind") == "shop"]
SESSIONS = facts.records("rollouts")
WITHOUT_FACTS = {
    "webshop",
    "code",
    "deepcoder",
    "terminal",
    "search",
    "openenv",
    "miniwob",
    "textworld",
    "alfworld",
}
MAIN, LANES = {"use_multiprocessing": False}, {"use_multiprocessing": True, "max_workers": 2}


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    return facts.write_data(tmp_path_factory.mktemp("data"))


# One environment at a time


def make_env(version: str, tag: str, data: dict[str, str]) -> Any:
    record = facts.tags()[version, tag]
    fields = facts.env_fields(version, record, data)
    config = REGISTERED_ENV_CONFIGS[record["env_type"]](**fields)
    return REGISTERED_ENVS[record["env_type"]](config)


@pytest.mark.parametrize(("version", "tag"), TAGS)
def test_resets_are_those_of_the_reference(version: str, tag: str, data: dict[str, str]) -> None:
    env, record = make_env(version, tag, data), facts.tags()[version, tag]
    assert len(record["resets"]) >= 10
    for seed, state in record["resets"]:
        shown = facts.shown(env.reset(seed, mode="train"))
        if record["env_type"] == "rubikscube":  # of whose resets the stickers were written down
            shown = "".join(map(str, env.stickers))
        assert facts.digest(shown) == state, seed
    for seed, index in record["indices"]:
        env.reset(seed, mode="train")
        assert env.index == index, seed
    for seed in record["refused"]:
        with pytest.raises(InputError):
            env.reset(seed, mode="train")


@pytest.mark.parametrize(("version", "tag"), TAGS)
def test_steps_are_those_of_the_reference_also_after_the_end(version: str, tag: str, data: dict[str, str]) -> None:
    env, record = make_env(version, tag, data), facts.tags()[version, tag]
    assert record["plays"]
    for play in record["plays"]:
        env.reset(play["seed"], mode="train")
        given = []
        for action in play["actions"]:
            if play["anew"]:
                env.reset(play["seed"], mode="train")
            observation, reward, done, info = env.step(action)
            given.append(facts.step_facts(observation, env.render(), reward, done, info))
        assert facts.digest(given) == play["digest"], (play["seed"], given)


def test_countdown_keeps_the_rows_that_the_reference_keeps(data: dict[str, str]) -> None:
    env = CountdownEnv(CountdownEnvConfig(train_path=data["countdown"]))
    rows = facts.numbers("countdown")["rows"]
    kept = [[numbers, target] for numbers, target, is_kept in rows if is_kept]
    assert [[list(puzzle.numbers), puzzle.target] for puzzle in env._puzzles()] == kept


# WebShop: what it draws; of its pages and texts nothing could be kept


@pytest.mark.parametrize("shop", SHOPS, ids=lambda shop: f"{shop['version']}-{shop['name']}")
def test_prices_goals_and_splits_are_drawn_as_in_the_reference(shop: Record) -> None:
    table, prices_of = GoalTable(shop["price_seed"]), []
    for prices, counts, is_wished in shop["products"]:
        options = {str(number): range(count) for number, count in enumerate(counts)}
        record = SimpleNamespace(prices=prices, options=options, instruction="" if is_wished else None)
        prices_of.append(table.add(record))  # type: ignore[arg-type]
    count, goals = shop["goals"]
    drawn = [[product, limit] for product, _, limit in table.rows()]
    assert len(drawn) == count
    assert facts.digest(prices_of) == shop["prices"]
    assert facts.digest(drawn) == goals
    order = split_order(count)
    for seed, mode, goal in shop["goal_of_seed"]:
        assert order[split_place(count, seed, mode)] == goal, (seed, mode)


# Rollouts of the manager


def config_of(session: Record, data: dict[str, str], settings: Record) -> Record:
    version, tags = session["version"], session["tags"]
    entries = {}
    for tag in tags:
        record = facts.tags()[version, tag.removesuffix("Multi")]
        fields, env_type = facts.env_fields(version, record, data), record["env_type"]
        if version == "up26" and env_type == "bandit":
            env_type = "support.counted_bandit:CountedBandit"
        entries[tag] = {"env_type": env_type, "env_config": fields, "max_actions_per_traj": session["max_actions"][tag]}
    part = {
        "env_groups": sum(session["n_groups"]),
        "group_size": session["group_size"],
        "env_configs": {"tags": tags, "n_groups": session["n_groups"]},
    }
    es_manager = {session["mode"]: part, "format_penalty": session["format_penalty"], **settings}
    return {"seed": {session["mode"]: session["base_seed"]}, "custom_envs": entries, "es_manager": es_manager}


class Replay:
    """A session, played again and compared event by event."""

    def __init__(self, manager: EnvStateManager) -> None:
        self._manager = manager
        self.compared = 0

    def play(self, events: list[Record]) -> None:
        for event in events:
            getattr(self, f"_{event['kind']}")(event)

    def _reset(self, event: Record) -> None:
        assert self._manager.seed_counter == event["counters"][0]
        caches = {cache["env_id"]: cache for cache in self._manager.reset(event["seed"])}
        assert self._manager.seed_counter == event["counters"][1]
        for env_id, expected in event["envs"]:
            cache = caches[env_id]
            seed, entry = self._status(env_id)["seed"], cache["history"][-1]
            ours = facts.begun(cache["tag"], cache["group_id"], seed, cache["penalty"], entry)
            self._compare(ours, expected, (env_id, event))

    def _step(self, event: Record) -> None:
        said = {"llm_response": "", "llm_raw_response": ""}
        inputs = [{"env_id": env_id, "actions": actions, **said} for env_id, actions, _ in event["envs"]]
        outputs = [cache["env_id"] for cache in self._manager.step(inputs)]
        assert outputs == event["outputs"]
        for env_id, _, expected in event["envs"]:
            cache = self._manager.rollout_cache[env_id]
            turn, entry = cache["history"][-2:]
            turn = {"executed": turn["actions"], "reward": turn["reward"], "info": turn["info"]}
            ours = facts.played(facts.turn_of_2025(turn), self._status(env_id), cache["penalty"], entry)
            self._compare(ours, expected, (env_id, event["kind"]))

    def _final(self, event: Record) -> None:
        caches = {cache["env_id"]: cache for cache in self._manager.get_rollout_states()}
        for env_id, expected in event["envs"]:
            cache = caches[env_id]
            history = cache["history"]
            record = {
                "metrics": cache["metrics"],
                "turn_metrics": history[-1]["metrics"],
                "history_len": len(history),
                "history_keys": [sorted(entry) for entry in history],
                "penalty": cache["penalty"],
            }
            self._compare(facts.ended(facts.end_of_2025(record), self._status(env_id)), expected, (env_id, "final"))

    def _compare(self, ours: list[Any], expected: str, where: Any) -> None:
        assert facts.digest(ours) == expected, (where, ours)
        self.compared += 1

    def _status(self, env_id: int) -> Record:
        return dict(vars(self._manager.envs[env_id]["status"]))


def replay(session: Record, data: dict[str, str], settings: Record) -> None:
    counted_bandit.forget_built()
    config = config_of(session, data, settings)
    with EnvStateManager(config, mode=session["mode"]) as manager:
        both = Replay(manager)
        both.play(session["events"])
        assert both.compared > 10
        assert bool(manager.lane_stats()[0].turns) == (settings is MAIN)


@pytest.fixture(scope="module")
def warm_lanes() -> Iterator[None]:
    """Workers that stay while managers come and go."""
    custom_envs = {"Keeper": {"env_type": "bandit", "max_actions_per_traj": 1}}
    part = {"env_groups": 2, "group_size": 1, "env_configs": {"tags": ["Keeper"], "n_groups": [2]}}
    with EnvStateManager({"custom_envs": custom_envs, "es_manager": {"train": part, **LANES}}):
        yield


def name_of(session: Record) -> str:
    return f"{session['version']}-{session['name']}-{session['mode']}"


@pytest.mark.parametrize("session", SESSIONS, ids=name_of)
def test_rollouts_are_those_of_the_reference(session: Record, data: dict[str, str]) -> None:
    replay(session, data, MAIN)


@pytest.mark.parametrize("session", [each for each in SESSIONS if each["mode"] == "train"][::4], ids=name_of)
def test_rollouts_in_lanes_are_those_of_the_reference(session: Record, data: dict[str, str], warm_lanes: None) -> None:
    replay(session, data, LANES)
