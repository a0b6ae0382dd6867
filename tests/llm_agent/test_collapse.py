"""The measures of collapse equal recorded ones, say what they should of extremes, and refuse what does not fit."""

import json
import math
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from ragen.errors import InputError
from ragen.llm_agent.evaluation.collapse import collapse_metrics

RECORDED = json.loads((Path(__file__).parents[1] / "data" / "collapse_metrics.json").read_text("utf-8"))
"""Batches, and what RAGEN's ``CollapseDetector._compute_metrics_for_pairs`` (commit 20daedc) returned for them."""


@pytest.mark.parametrize("batch", RECORDED)
def test_keys_and_values_are_those_that_ragen_returned(batch):
    found = collapse_metrics(batch["log_probs"], batch["owner"], batch["lengths"], batch["prompts"])
    assert found == pytest.approx(batch["metrics"], abs=1e-5)


def test_some_recorded_batches_have_equal_prompts():
    assert sum(len({tuple(each) for each in batch["prompts"]}) < len(batch["prompts"]) for batch in RECORDED) >= 3


def test_thoughts_that_ignore_prompts_have_no_information_and_are_retrieved_at_chance():
    rows = np.linspace(-9, -5, 12)[:, None].repeat(6, axis=1) - 1e-9 * np.arange(6)
    found = collapse_metrics(rows, np.arange(12) % 6, np.ones(12))
    assert found["collapse/mi_estimate"] == pytest.approx(0, abs=1e-6)
    assert found["collapse/retrieval_accuracy"] == found["collapse/retrieval_chance_level"] == pytest.approx(1 / 6)
    assert found["collapse/conditional_entropy_est"] == pytest.approx(7)


def test_thoughts_that_only_their_prompt_explains_reach_the_bound():
    log_probs = np.full((8, 8), -500.0)
    np.fill_diagonal(log_probs, -3.0)
    found = collapse_metrics(log_probs, np.arange(8), np.full(8, 2))
    assert found["collapse/mi_estimate"] == pytest.approx(math.log(8)) == found["collapse/mi_upper_bound"]
    assert found["collapse/retrieval_accuracy"] == 1.0
    assert found["collapse/conditional_entropy_est"] == 1.5 and found["collapse/conditional_entropy_seq_est"] == 3.0


def test_equal_prompts_count_as_one_in_retrieval_and_not_in_information():
    log_probs = [[-1.0, -2.0, -9.0], [-1.0, -2.0, -9.0], [-9.0, -9.0, -1.0]]
    apart = collapse_metrics(log_probs, [0, 1, 2], [1, 1, 1])
    alike = collapse_metrics(log_probs, [0, 1, 2], [1, 1, 1], [[5], [5], [6]])
    assert apart["collapse/retrieval_accuracy"] == pytest.approx(2 / 3) and alike["collapse/retrieval_accuracy"] == 1.0
    assert alike["collapse/retrieval_chance_level"] == pytest.approx(5 / 9)
    assert alike["collapse/mi_estimate"] == apart["collapse/mi_estimate"]


def test_one_prompt_has_nothing_to_be_told_from():
    assert collapse_metrics([[-1.0], [-2.0]], [0, 0], [1, 1]) == {}


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (([-1.0, -2.0], [0, 1], [1, 1]), "shape"),
        ((np.zeros((0, 2)), [], []), "at least one"),
        (([[-1.0, -2.0]], [0, 1], [1]), "an entry a thought"),
        (([[-1.0, math.nan]], [0], [1]), r"log_probs\[0, 1\] is nan"),
        (([[-1.0, -2.0]], [2], [1]), "integers from 0 to 1"),
        (([[-1.0, -2.0]], [0.0], [1]), "integers from 0 to 1"),
        (([[-1.0, -2.0]], [0], [1], [[1]]), "1 prompts"),
    ],
)
def test_what_does_not_fit_is_refused(arguments, message):
    with pytest.raises(InputError, match=message):
        collapse_metrics(*arguments)


def test_the_measures_need_no_torch():
    code = "import sys, ragen.llm_agent.evaluation.collapse; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
