"""The measures of collapse equal recorded ones, and refuse what does not fit."""

import json
from functools import partial
from pathlib import Path

import pytest

from ragen.config import CollapseDetection
from ragen.errors import InputError
from ragen.results import collapse_metrics
from ragen.training.collapse import CollapseDetector

RECORDED = json.loads((Path(__file__).parents[1] / "data" / "collapse_metrics.json").read_text("utf-8"))
"""Batches, and what RAGEN's ``CollapseDetector._compute_metrics_for_pairs`` (commit 20daedc) returned for them."""


@pytest.mark.parametrize("batch", RECORDED)
def test_keys_and_values_are_those_that_ragen_returned(batch):
    found = collapse_metrics(batch["log_probs"], batch["owner"], batch["lengths"], batch["prompts"])
    assert found == pytest.approx(batch["metrics"], abs=1e-5)


@pytest.mark.parametrize(
    ("log_probs", "owner", "lengths", "prompts"),
    [
        ([], [], [], None),
        ([[-1, -2]], [0, 1], [1], None),
        ([[-1, -2]], [0], [1, 1], None),
        ([[-1, -2]], [0], [1], [[5]]),
        ([[-1, float("nan")]], [0], [1], None),
        ([[-1, -2]], [2], [1], None),
        ([[-1, -2]], [0.5], [1], None),
    ],
)
def test_what_does_not_fit_is_refused(log_probs, owner, lengths, prompts):
    with pytest.raises(InputError):
        collapse_metrics(log_probs, owner, lengths, prompts)


# While a model is trained


GROUPS = [0, 0, 1, 1, 2, 2]
RECORDED_AVERAGES = {
    "mi_estimate": [-0.22422099113464355, -0.141839861869812, -0.36019086837768555],
    "marginal_std_ema": [0.29654040932655334, 0.2858529418706894, 0.28853856295347213],
    "marginal_std_ema_seq": [1.1963164806365967, 1.1959606528282165, 1.149480949640274],
    "mi_zscore_ema": [-0.7535821795463562, -0.49446868896484375, -1.244017243385315],
    "mi_zscore_ema_seq": [-0.24458062648773193, -0.11516205966472626, -0.4631528854370117],
}
"""What RAGEN's ``CollapseDetector`` (commit 20daedc) returned for the first three steps that it measured."""


def as_recorded(prompts, thoughts, step):
    """The log-probabilities that RAGEN's detector was given when the figures below were recorded."""
    return [[-((sum(p) * 7 + sum(z) * 3 + step * len(z)) % 11) / 4 - len(z) for p in prompts] for z in thoughts]


def played(thoughts):
    prompts = [[3, 1], [3, 1], [4], [4], [5, 9, 2], [5, 9, 2]]
    return {
        "first_turn_prompt_ids": prompts,
        "first_turn_reasoning_ids": thoughts,
        "all_turns_prompt_ids": [[prompt] * bool(thought) for prompt, thought in zip(prompts, thoughts, strict=True)],
        "all_turns_reasoning_ids": [[thought] * bool(thought) for thought in thoughts],
        "turn_counts": list(map(bool, thoughts)),
        "turn_counts_total": [1] * len(thoughts),
        "group_ids": GROUPS,
    }


def test_a_detector_measures_the_steps_that_ragens_does_and_averages_as_it_does():
    detector = CollapseDetector(CollapseDetection(first_turn_enabled=True, compute_freq=2), seed=0, context=9)
    assert [step for step in range(1, 7) if detector.is_due(step)] == [1, 2, 4, 6]
    thoughts = played([[5], [6, 2], [], [8, 8, 1], [5], [9, 9]])
    found = [detector.measure(thoughts, partial(as_recorded, step=step), step) for step in (1, 2, 4)]
    assert [len(each) for each in found] == [32, 32, 32]
    sample = "collapse_first_turn_sample"
    for name, recorded in RECORDED_AVERAGES.items():
        assert [each[f"{sample}/{name}"] for each in found] == pytest.approx(recorded, rel=2e-5), name
    assert found[0]["collapse/first_turn_num_valid"] == 5 and found[0]["collapse/first_turn_valid_rate"] == 5 / 6


def test_a_detector_that_goes_on_from_its_averages_measures_what_one_that_was_not_stopped_does():
    thoughts, keys = played([[5], [6, 2], [1], [8, 8, 1], [5], [9, 9]]), CollapseDetection(multi_turn_enabled=True)
    whole, first, second = (CollapseDetector(keys, seed=3, context=9) for _ in range(3))
    expected = [whole.measure(thoughts, partial(as_recorded, step=step), step) for step in (1, 2)]
    first.measure(thoughts, partial(as_recorded, step=1), 1)
    second.averages.update(first.averages)
    assert second.measure(thoughts, partial(as_recorded, step=2), 2) == expected[1]
