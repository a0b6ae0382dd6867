"""Nothing that failed is learned from, at every door of a training."""

import json
import sys
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path

import pytest

from ragen.errors import EnvsFailedError
from ragen.training.filtering import FilterSettings, has_variance, sample_groups
from ragen.training.trajectories import Group, Trajectory
from support.later import training
from support.small_training import small_config

BENCHMARKS = Path(__file__).resolve().parents[2] / "benchmarks"
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


def a_group(*scores, failed=(), size=None):
    members = [
        Trajectory(
            place, "T", score, score, env_error="gone" if place in failed else None, has_signal=place not in failed
        )
        for place, score in enumerate(scores)
    ]
    return Group(str(scores), members[:size])


@pytest.mark.parametrize(
    ("group", "differs"),
    [
        (a_group(0.0, 0.0, 0.0), False),
        (a_group(0.0, 0.0, 1.0), True),
        (a_group(0.0, 0.0, 1.0, failed=[2]), False),
        (a_group(0.0, 0.5, 1.0, failed=[2]), True),
        (a_group(0.0, 1.0, failed=[0, 1]), False),
        (a_group(0.0), True),
        (a_group(0.0, failed=[0]), False),
    ],
)
def test_a_failed_member_has_no_vote_in_its_groups_spread(group, differs):
    assert has_variance(group) == differs


@pytest.mark.parametrize("enable", [False, True])
def test_sampling_ends_where_everything_failed_and_no_filter_sees_it(enable):
    gone = a_group(0.0, 1.0, failed=[0, 1])
    sample = sample_groups(lambda: [gone, gone], FilterSettings(enable=enable, max_batches=0))
    assert sample.groups == [] and sample.batches == 1
    half = sample_groups(lambda: [gone, a_group(0.0, 1.0)], FilterSettings(enable=False))
    assert len(half.groups) == 1 and half.metrics()["filter/in_group_std"] == pytest.approx(0.5**0.5)


@pytest.mark.parametrize("early_stop", [True, False])
def test_a_training_whose_service_is_gone_ends_with_an_error(tmp_path, bench, monkeypatch, early_stop):
    monkeypatch.setattr(sys.modules["frail"].Frail, "gone_every", 1)
    tags = [
        f"es_manager.{mode}.env_configs.{key}" for mode in ("train", "val") for key in ("tags=[Frail]", "n_groups=[2]")
    ]
    env = "{env_type: 'frail:Frail', max_actions_per_traj: 2, env_instruction: go, env_config: {}}"
    config = small_config(
        tmp_path, *tags, f"+custom_envs.Frail={env}", f"trainer.early_stop={early_stop}", "warm_up.steps=0", steps=20
    )
    with pytest.raises(EnvsFailedError):
        training.train(config, quiet=True)
    lines = [json.loads(line) for line in (tmp_path / "metrics.jsonl").read_text("utf-8").splitlines()]
    assert lines[-1]["step"] == 1 and lines[-1]["train/Frail/env_error/ConnectionError"] == 4
    assert "train/success" not in lines[-1] and not any(name.startswith("early_stopped") for name in lines[-1])
