"""Rollouts that branch: the same trees wherever environments live, every prompt once, and rows that tell lineage."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from ragen.errors import ConfigError
from ragen.llm_agent.backends import Backend, Reply, create_backend
from ragen.llm_agent.backends.scripted import ScriptedBackend
from ragen.llm_agent.ctx_manager import ContextManager
from ragen.llm_agent.es_manager import EnvStateManager
from ragen.llm_agent.evaluation.results import evaluate, with_pass_at_k
from ragen.llm_agent.report import render, report_of
from ragen.llm_agent.report.command import report_of_rows
from ragen.llm_agent.rollout import command
from ragen.llm_agent.rollout.proxy import LLMAgentProxy
from ragen.llm_agent.rollout.rollout_file import whole_trees
from ragen.llm_agent.tokens.dataproto import PromptBatch
from ragen.llm_agent.trees.lineage import Forest
from support.episodes import freeze
from support.trees import GAMES, TOKENIZER, Asked, configuration, played, rows_in

Kill = Callable[[object], None]


# The same trees everywhere


@pytest.fixture(scope="module")
def here() -> Any:
    return freeze(played(configuration()))


def test_trees_are_the_same_in_lanes_and_where_these_are_killed(here: Any, backend: str, kill_lanes: Kill) -> None:
    in_lanes = configuration("es_manager.use_multiprocessing=true")
    killed: list[int] = []

    def kill(manager: Any, turn: int) -> None:
        if turn in (1, 3):
            kill_lanes(manager)
            killed.append(turn)

    assert freeze(played(in_lanes)) == here
    assert freeze(played(in_lanes, kill)) == here and killed == [1, 3]
    assert freeze(played(configuration("actor.scripted.seed=1"))) != here


def test_every_leaf_is_what_its_replies_would_have_led_to_as_a_chain(here: Any) -> None:
    config = configuration()
    caches, read = played(config), ContextManager(config, TOKENIZER)
    assert freeze(caches) == here and Forest.of(caches).has_branches
    with EnvStateManager(config) as manager:
        for cache in caches:
            manager.reset(10000)
            env_id = next(each["env_id"] for each in manager.envs if each["group_id"] == cache["group_id"])
            for turn in cache["history"][:-1]:
                said = {"env_ids": [env_id], "response_texts": [str(turn["llm_raw_response"])]}
                manager.step(read.get_env_inputs(PromptBatch(said)))  # type: ignore[arg-type]
            straight = manager.get_rollout_states()[env_id]
            assert alike(straight) == alike(cache)


def alike(cache: dict[str, Any]) -> Any:
    """A cache without what it has as a branch or as a member of a group alone."""
    metrics = {name: value for name, value in cache["metrics"].items() if "/pass@" not in name}
    return freeze([cache["history"], cache["penalty"], metrics])


# Who is asked what


def test_a_prompt_is_written_once_and_answered_as_often_as_the_tree_is_wide() -> None:
    config = configuration("agent_proxy.branching.width=3", "agent_proxy.branching.max_leaves=9")
    actor, written = Asked(config), []
    with LLMAgentProxy(config, actor, TOKENIZER) as proxy:
        _, ctx_manager = proxy.prepare()
        write = ctx_manager.get_prompts
        ctx_manager.get_prompts = lambda caches, _: (written.extend(c["env_id"] for c in caches), write(caches))[1]
        caches = proxy.play({})
    forest = Forest.of(caches)
    turns = [(node.env_id, turn) for node in forest.nodes.values() for turn in range(node.turn, node.played)]
    assert sorted(turns) == sorted((request.env_id, request.turn) for request in actor.requests)
    assert len(written) == len({forest.point(*each) for each in turns}) < len(turns)
    asked = {(request.env_id, request.turn): list(request.messages) for request in actor.requests}
    for point, members in forest.points.items():
        assert len({json.dumps(asked[env_id, point.turn]) for env_id in members}) == 1
    leaves = [list(map(forest.root, forest.nodes)).count(root) for root in range(6)]
    assert max(leaves) == 9 and [asked for asked in leaves if asked > 9] == []


def test_a_budget_ends_the_branching_and_not_the_playing() -> None:
    few = configuration("agent_proxy.branching.budget_tokens=1")
    forest = Forest.of(played(few))
    assert {point.turn for point in forest.points} == {0}, "nothing was used yet when the first prompts were written"
    chains = [
        node.played for node in Forest.of(played(configuration("agent_proxy.branching.when=null"))).nodes.values()
    ]
    assert [forest.nodes[root].played for root in range(6)] == chains


def test_a_branch_without_a_reply_ends_alone() -> None:
    config = configuration()
    free = {cache["env_id"]: cache for cache in played(config)}
    lost = next(e for e, c in free.items() if c.get("turn") == 0)
    actor = Asked(config, frozenset({(lost, 0)}))
    with LLMAgentProxy(config, actor, TOKENIZER) as proxy:
        states = {state["env_id"]: state for state in proxy.play({})}
        assert proxy.failures == {lost: "lost"}
    assert len(states[lost]["history"]) == 1 and states[lost]["parent"] == free[lost]["parent"]
    assert len(states) > 6


def test_validation_is_played_in_chains_unless_it_is_named() -> None:
    for modes, expected in (("[train]", False), ("[val,train]", True)):
        config = configuration(f"agent_proxy.branching.modes={modes}")
        with LLMAgentProxy(config, Asked(config), TOKENIZER) as proxy:
            assert Forest.of(proxy.play({"validate": True}, val=True)).has_branches is expected


UNSURE = "agent_proxy.branching={when: entropy, threshold: 0.5}"


class Model(Backend):
    """A backend that is asked for nothing here."""

    def generate(self, requests: Any, sampling: Any) -> list[Reply]:
        raise AssertionError


class Unsure(Model):
    lacks_log_probs = "it does not draw them"


@pytest.mark.parametrize(
    ("overrides", "actor", "said"),
    [
        (["actor_rollout_ref.rollout.do_sample=false"], Model(), "all branches would be equal"),
        (["use_parallel_envs=true"], Model(), "use_parallel_envs is true, which supports only chains"),
        (["agent_proxy.branching={when: after_turn, turns: [4, 9]}"], Model(), r"turns is \[4, 9\].*Expected .*to 3"),
        ([UNSURE], None, "the scripted actor draws no tokens"),
        ([UNSURE], Unsure(), "of replies' tokens, and it does not draw them"),
    ],
)
def test_what_cannot_branch_is_refused_before_anything_is_built(overrides: list[str], actor: Any, said: str) -> None:
    actor = actor or create_backend(configuration(), TOKENIZER)
    with pytest.raises(ConfigError, match=said):
        LLMAgentProxy(configuration(*overrides), actor, TOKENIZER)
    LLMAgentProxy(configuration(UNSURE), Model(), TOKENIZER)


# What is written


def test_the_command_writes_lineage_and_counts_what_shares_nothing(tmp_path: Path, capsys: Any) -> None:
    config = configuration("mode=train", f"output_dir={tmp_path}", "report=true")
    assert command.run(config) == 0
    rows = rows_in(tmp_path)
    by_id = {row["env_id"]: row for row in rows}
    forest = Forest.of(rows)
    assert forest.has_branches and [row["env_id"] for row in rows] == sorted(row["env_id"] for row in rows)
    assert [("parent" in row, "turn" in row) for row in rows] == [(row["env_id"] >= 6,) * 2 for row in rows]
    for row in rows[6:]:
        parent, shared = by_id[row["parent"]], row["turn"]
        assert row["env_id"] % 6 == row["parent"] % 6
        assert row["actions"][:shared] == parent["actions"][:shared] and row["seed"] == parent["seed"]
        assert not any("pass@" in name for name in row["metrics"])
    results = {each["tag"]: each for each in json.loads((tmp_path / "results.json").read_text())["tags"]}
    assert {tag: results[tag]["episodes"] for tag in GAMES} == dict.fromkeys(GAMES, 2)
    assert f"{len(rows) - 6} of {len(rows)} trajectories are branches" in capsys.readouterr().out
    page = (tmp_path / "report.html").read_text("utf-8")
    assert page.count("<details open>") == len(forest.segments) and "then 2 ways" in page
    assert page.count('data-label="episodes">2<') == len(GAMES), "which is how many share nothing"
    assert "<h2>Trees</h2>" in render(report_of_rows(tmp_path / "rollouts.jsonl"))


def test_a_run_that_was_stopped_goes_on_and_plays_no_whole_tree_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def run(name: str, *overrides: str) -> int:
        return command.run(configuration("mode=train", f"output_dir={tmp_path / name}", *overrides))

    asked: set[int] = set()
    generate = ScriptedBackend.generate

    def until_turn_2(backend: Any, requests: Any, sampling: Any) -> list[Reply]:
        if requests[0].turn == 2:
            raise KeyboardInterrupt
        return generate(backend, requests, sampling)

    def noting(backend: Any, requests: Any, sampling: Any) -> list[Reply]:
        asked.update(request.env_id % 6 for request in requests)
        return generate(backend, requests, sampling)

    assert run("whole") == 0
    whole = rows_in(tmp_path / "whole")
    with monkeypatch.context() as patch:
        patch.setattr(ScriptedBackend, "generate", until_turn_2)
        assert run("cut") == 130
    done = {row["env_id"] for row in rows_in(tmp_path / "cut")}
    roots = {env_id for env_id in done if env_id < 6}
    assert 0 < len(roots) < 6 and done == {row["env_id"] for row in whole if row["env_id"] % 6 in roots}
    with monkeypatch.context() as patch:
        patch.setattr(ScriptedBackend, "generate", noting)
        assert run("cut", "resume=true") == 0
    assert asked == set(range(6)) - roots
    for name in ("rollouts.jsonl", "results.json"):
        assert (tmp_path / "cut" / name).read_bytes() == (tmp_path / "whole" / name).read_bytes()


def test_of_a_file_that_was_cut_anywhere_whole_trees_are_kept() -> None:
    config = configuration()
    states: list[dict[str, Any]] = []
    with LLMAgentProxy(config, Asked(config), TOKENIZER) as proxy:
        proxy.play({}, on_over=states.extend)
    records = [{name: state[name] for name in ("env_id", "parent") if name in state} for state in states]
    of_tree = Counter(record["env_id"] % 6 for record in records)
    for length in range(len(records) + 1):
        kept = whole_trees(records[:length])
        found = Counter(record["env_id"] % 6 for record in kept)
        assert found == {root: of_tree[root] for root in found} and set(found) == {
            record["env_id"] for record in records[:length] if record["env_id"] < 6
        }
    lost = next(record for record in records if record["env_id"] >= 6) | {"error": "lost"}
    left = whole_trees([lost if record["env_id"] == lost["env_id"] else record for record in records])
    assert {record["env_id"] % 6 for record in left} == set(range(6)) - {lost["env_id"] % 6}


def test_pass_at_k_and_evaluations_know_no_branches() -> None:
    def row(env_id: int, success: bool, **lineage: int) -> dict[str, Any]:
        seen = {"tag": "A", "seed": 1, "metrics": {}, "rewards": [1.0], "penalty": 0}
        return {"env_id": env_id, "group_id": 0, "success": success, **seen, **lineage}

    rows = [row(0, False), row(1, False), row(2, True, parent=0, turn=1)]
    (result,) = evaluate(rows)
    assert (result.episodes, result.success) == (2, 0.0)
    assert [each["metrics"] for each in with_pass_at_k(rows, 2)] == [{"A/pass@2": 0.0}, {"A/pass@2": 0.0}, {}]


def test_a_report_of_a_proxy_shows_branches_too() -> None:
    config = configuration()
    with LLMAgentProxy(config, Asked(config), TOKENIZER) as proxy:
        states = proxy.play({})
        report = report_of(proxy, "train")
        assert [episode.seed for episode in report.episodes[:6]] == [10000, 10000, 10001, 10001, 10002, 10002]
        by_id = {episode.state["env_id"]: episode for episode in report.episodes}
        assert all(by_id[s["env_id"]].seed == by_id[s["parent"]].seed for s in states if "parent" in s)
