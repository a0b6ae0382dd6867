"""Trees whose rollouts overlap: each shard's grow at their own pace, and are those of lockstep bit for bit."""

from __future__ import annotations

import os
import signal
import threading
from pathlib import Path
from typing import Any

import pytest

from ragen.errors import InputError
from ragen.llm_agent.backends import Reply
from ragen.llm_agent.backends.scripted import ScriptedBackend
from ragen.llm_agent.rollout import command
from ragen.llm_agent.rollout.proxy import LLMAgentProxy
from support.episodes import freeze
from support.trees import TOKENIZER, Asked, configuration, played, rows_in

SHARDS = ("agent_proxy.use_parallel_rollout=true", "agent_proxy.parallel_n_jobs=3")


@pytest.fixture(scope="module")
def lockstep() -> Any:
    return freeze(played(configuration()))


def test_the_first_shard_begins_when_all_other_trees_are_over(lockstep: Any) -> None:
    config = configuration(*SHARDS)
    others, through = set(range(6)), threading.Event()

    def note(states: list[dict[str, Any]]) -> None:
        others.difference_update(state["env_id"] for state in states)
        if not others:
            through.set()

    def hold(requests: Any) -> None:
        if requests[0].env_id in slow and requests[0].turn == 0:
            assert through.wait(30)

    with LLMAgentProxy(config, Asked(config, before=hold), TOKENIZER) as proxy:
        slow = set(proxy.prepare()[0].shards[0])  # type: ignore[attr-defined]
        others -= slow
        assert freeze(proxy.play({}, on_over=note)) == lockstep
        assert proxy.parallel is not None and proxy.parallel.fallback_reason is None


def test_a_worker_that_is_killed_between_two_turns_changes_nothing(lockstep: Any) -> None:
    config = configuration(*SHARDS, "es_manager.use_multiprocessing=true")
    killed: list[int] = []

    def kill(requests: Any) -> None:
        if requests[0].turn == 1 and not killed:
            killed.append(proxy.train_es_manager.lane_stats()[1].pid or 0)
            os.kill(killed[0], signal.SIGKILL)

    with LLMAgentProxy(config, Asked(config, before=kill), TOKENIZER) as proxy:
        assert freeze(proxy.play({})) == lockstep and killed
        assert sum(lane.restarts for lane in proxy.train_es_manager.lane_stats()) == 1


def test_what_shards_could_not_play_goes_on_from_the_same_branches(lockstep: Any) -> None:
    config, failed = configuration(*SHARDS), list[int]()

    def fail(requests: Any) -> None:
        if requests[0].turn == 1 and not failed:
            failed.append(1)
            raise RuntimeError("the model fell over")

    actor = Asked(config, before=fail)
    with LLMAgentProxy(config, actor, TOKENIZER) as proxy:
        assert freeze(proxy.play({})) == lockstep
        assert proxy.parallel is not None and "fell over" in str(proxy.parallel.fallback_reason)
    asked = [(request.env_id, request.turn) for request in actor.requests]
    assert len(asked) == len(set(asked))


def breaks(node: Any) -> bool:
    if node.env_id == 0:
        raise KeyError("nothing")
    return True


def test_a_function_of_ones_own_that_raises_ends_the_rollout_before_more_is_asked() -> None:
    config = configuration(*SHARDS, f"agent_proxy.branching.when={__name__}:breaks")
    actor = Asked(config)
    with LLMAgentProxy(config, actor, TOKENIZER) as proxy, pytest.raises(InputError, match="raised for env_id = 0"):
        proxy.play({})
    assert {request.turn for request in actor.requests} <= {0}


def test_a_run_in_shards_goes_on_with_the_trees_that_are_not_whole(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def run(name: str, *overrides: str) -> int:
        return command.run(configuration("mode=train", f"output_dir={tmp_path / name}", *overrides))

    generate = ScriptedBackend.generate

    def until_turn_2(backend: Any, requests: Any, sampling: Any) -> list[Reply]:
        if requests[0].turn == 2:
            raise KeyboardInterrupt
        return generate(backend, requests, sampling)

    assert run("whole") == 0
    with monkeypatch.context() as patch:
        patch.setattr(ScriptedBackend, "generate", until_turn_2)
        assert run("cut", *SHARDS) == 130
    assert 0 < len(rows_in(tmp_path / "cut")) < len(rows_in(tmp_path / "whole"))
    assert run("cut", "resume=true", *SHARDS) == 0
    for name in ("rollouts.jsonl", "results.json"):
        assert (tmp_path / "cut" / name).read_bytes() == (tmp_path / "whole" / name).read_bytes()
