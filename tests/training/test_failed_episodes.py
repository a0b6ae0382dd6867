"""Nothing that failed is learned from, at every door of a training."""

import json
import sys
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path

import pytest

from ragen.errors import EnvsFailedError
from support.configurations import composed
from support.later import shipped, training
from support.small_training import small_config

BENCHMARKS = Path(__file__).resolve().parents[2] / "benchmarks"
FRAIL = "{env_type: 'frail:Frail', max_actions_per_traj: 3, env_instruction: go, env_config: {}}"
pytestmark = pytest.mark.contract


@pytest.fixture
def bench(monkeypatch):
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    spec = spec_from_file_location("failed_episodes", BENCHMARKS / "failed_episodes.py")
    module = module_from_spec(spec)
    monkeypatch.setitem(sys.modules, "failed_episodes", module)
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize("policy", ["mask", "drop_group"])
@pytest.mark.parametrize(
    "more", [[], ["agent_proxy.reward_normalization.method=mean_std"]], ids=["identity", "mean_std"]
)
def test_a_training_is_that_of_a_batch_without_what_failed(bench, policy, more):
    alone = ["es_manager.use_multiprocessing=false", *more]
    figures = bench.run(2, 8, 4, {"Raise": 0.04}, policy, alone)
    assert figures.is_sound, figures
    assert figures.episodes == 64 > figures.judged >= figures.trained > 0


def test_workers_that_hang_and_die_leave_no_token_to_learn_from(bench):
    figures = bench.run(1, 3, 4, {"Hang": 0.06, "Die": 0.06})
    assert figures.is_sound, figures
    assert figures.judged < figures.episodes == 12


def test_a_training_whose_service_is_gone_ends_with_an_error(tmp_path, bench, monkeypatch):
    monkeypatch.setattr(sys.modules["frail"].Frail, "gone_every", 1)
    tags = [
        f"es_manager.{mode}.env_configs.{key}" for mode in ("train", "val") for key in ("tags=[Frail]", "n_groups=[2]")
    ]
    config = small_config(tmp_path, *tags, f"+custom_envs.Frail={FRAIL}", "warm_up.steps=0", steps=20)
    with pytest.raises(EnvsFailedError):
        training.train(config, quiet=True)
    lines = [json.loads(line) for line in (tmp_path / "metrics.jsonl").read_text("utf-8").splitlines()]
    assert lines[-1]["step"] == 1 and lines[-1]["train/Frail/env_error/ConnectionError"] == 4
    assert "train/success" not in lines[-1]


def batch_of(failed, size, groups, *overrides, rollouts=1):
    """A batch of RAGEN's proxy, of environments of which some fail in their first turn; odd ones win."""
    from verl import DataProto

    from ragen.llm_agent import LLMAgentProxy
    from ragen.llm_agent.backends import Reply
    from ragen.llm_agent.backends.base import Backend

    class Scripted(Backend):
        def generate(self, requests, sampling):
            words = ["Raise" if each.env_id in failed else ("Stay", "Go")[each.env_id % 2] for each in requests]
            return [Reply(f"ok</think><answer>{word}</answer>") for word in words]

    keys = (
        f"env_groups={groups}",
        f"group_size={size}",
        "env_configs.tags=[Frail]",
        f"env_configs.n_groups=[{groups}]",
    )
    config = composed(
        "_1_bandit",
        [
            *(f"es_manager.{mode}.{key}" for mode in ("train", "val") for key in keys),
            f"+custom_envs.Frail={FRAIL}",
            *("agent_proxy.max_turn=3", "agent_proxy.max_actions_per_turn=1", "es_manager.use_multiprocessing=false"),
            *overrides,
        ],
    )
    with LLMAgentProxy(config, Scripted(), shipped()) as proxy:
        for _ in range(rollouts):
            batch = proxy.rollout(DataProto(meta_info={}))
        return batch


TURNS = "agent_proxy.context_window_mode=single_turn"
DROP = "es_manager.failed_trajectories=drop_group"
ROWS = [
    ([3], 4, 2, [], "11101111"),
    ([3], 4, 2, [DROP], "00001111"),
    ([1, 2, 3], 4, 2, [], "00001111"),
    ([0, 1, 2, 3], 4, 1, [], "0000"),
    ([1], 1, 3, [], "101"),
    ([3], 4, 1, ["agent_proxy.use_turn_scores=true"], "1110"),
    ([3], 4, 1, [TURNS], "1110"),
    ([3], 4, 1, ["agent_proxy.reward_normalization.method=mean_std"], "1110"),
    ([3], 4, 1, ["agent_proxy.use_parallel_rollout=true"], "1110"),
]


@pytest.mark.parametrize(("failed", "size", "groups", "overrides", "learned"), ROWS)
def test_a_trainer_that_knows_of_no_failures_learns_from_none(bench, failed, size, groups, overrides, learned):
    """Masks, groups and scores say it, whatever the rows are; and a trainer that asks finds the reason."""
    batch = batch_of(failed, size, groups, *overrides)
    columns, loss = batch.non_tensor_batch, batch.batch["loss_mask"].sum(-1)
    seen, groups_of = {}, {}
    for row, env_id in enumerate(columns["env_ids"]):
        seen[env_id] = seen.get(env_id, False) or bool(loss[row] > 0)
        groups_of.setdefault(columns["group_ids"][row], set()).add(env_id)
        assert (columns["env_error"][row] is not None) == (env_id in failed)
    assert "".join(str(int(seen[env_id])) for env_id in sorted(seen)) == learned
    assert all(len(members) == 1 for members in groups_of.values() if members & set(failed))
    assert batch.meta_info["metrics"]["Frail/env_error/ValueError"] == len(failed)
    valid = [env_id for env_id in seen if env_id not in failed]
    expected = sum(env_id % 2 for env_id in valid) / len(valid) if valid else None
    assert batch.meta_info["metrics"].get("Frail/success") == (None if expected is None else pytest.approx(expected))


def test_rows_of_turns_have_none_of_what_failed(bench):
    batch = batch_of([3, 4, 5, 6], 4, 2, "use_parallel_envs=true")
    assert sorted(set(batch.non_tensor_batch["env_ids"])) == [0, 1, 2]
    assert batch.meta_info["metrics"]["Frail/success"] == 0.5  # of 0, 1, 2 and 7, which has nobody to compare with


@pytest.mark.parametrize("how", ["use_parallel_envs=false", "use_parallel_envs=true"])
def test_a_trainer_of_ones_own_is_ended_by_the_rollout_after_an_outage(bench, how):
    batch_of([3, 4, 5, 6], 4, 2, how, rollouts=2)
    with pytest.raises(EnvsFailedError):
        batch_of([3, 4, 5, 6, 7], 4, 2, how, rollouts=2)
