"""Collapse of thoughts during training: samples of thoughts, measured every n steps.

The measures of :func:`ragen.results.collapse_metrics` are computed for a sample of pairs of a prompt and a thought.
Samples are drawn as in RAGEN-2:

first turns
    At most the requested number of pairs, drawn from the first turns with a thought. Members of a group whose prompts
    are equal share a column.
trajectories
    The requested number of pairs: a trajectory drawn uniformly, and one of its turns drawn uniformly. Each pair has its
    own column; trajectories without a thought are skipped.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from ragen.config import CollapseDetection
from ragen.results import collapse_metrics
from ragen.statistics import numbered

FIRST_TURNS, TRAJECTORIES = "collapse_first_turn_sample", "collapse_trajectory_sample"
"""The prefix of a training's metrics for each sample, as in RAGEN."""
Columns = Mapping[str, Any]
"""Those of :func:`~ragen.llm_agent.batches.collapse.collapse_columns`, and ``group_ids``, of each trajectory."""
Ids = tuple[int, ...]
Pair = tuple[tuple[Any, Ids], Ids]
"""A prompt, as its group or place in the sample and its tokens, and a thought. Equal prompts share a column."""
Score = Callable[[Sequence[Ids], Sequence[Ids]], ArrayLike]
"""Summed log-probabilities ``(thoughts, prompts)`` of prompts and thoughts, as ``Learner.scores_of_thoughts``."""


def first_turns(columns: Columns, most: int, draw: np.random.Generator) -> list[Pair]:
    """At most so many pairs, drawn from the first turns with a thought, in the order of trajectories."""
    names = ("group_ids", "first_turn_prompt_ids", "first_turn_reasoning_ids")
    rows = zip(*map(columns.__getitem__, names), strict=True)
    pairs = [((group, tuple(prompt)), tuple(thought)) for group, prompt, thought in rows if thought]
    return [pairs[place] for place in sorted(draw.choice(len(pairs), min(most, len(pairs)), replace=False))]


def turns_of_trajectories(columns: Columns, most: int, draw: np.random.Generator) -> list[Pair]:
    """At most so many pairs: each of a trajectory drawn uniformly, a turn drawn uniformly."""
    rows = zip(columns["all_turns_prompt_ids"], columns["all_turns_reasoning_ids"], strict=True)
    turns = [list(zip(prompts, thoughts, strict=True)) for prompts, thoughts in rows]
    drawn = draw.integers(len(turns), size=min(most, sum(map(len, turns))))
    pairs = [turns[place][draw.integers(len(turns[place]))] for place in drawn if turns[place]]
    return [((place, tuple(prompt)), tuple(thought)) for place, (prompt, thought) in enumerate(pairs)]


def cross_log_probs(prompts: Sequence[Ids], thoughts: Sequence[Ids], score: Score) -> np.ndarray:
    """The scores of all thoughts after all prompts; equal prompts, and equal thoughts, are scored once."""
    (asked, column), (said, row) = numbered(prompts), numbered(thoughts)
    return np.asarray(score(asked, said), np.float64)[np.ix_(row, column)]


@dataclass
class CollapseDetector:
    """Measures collapse every few steps of a training, with RAGEN's keys.

    ``collapse_first_turn_sample/..`` and ``collapse_trajectory_sample/..`` have the keys of ``collapse_metrics`` and
    those of moving averages, ``marginal_std_ema`` and ``mi_zscore_ema`` (with ``_seq`` for whole thoughts).
    ``collapse/..`` has the fractions of replies with a thought.

    Attributes:
        keys: Measurements and their intervals.
        seed: Determines the samples, together with the step.
        context: The policy's maximum number of tokens; pairs that may not fit are left out of a sample.
        averages: The moving averages of standard deviations, by sample and kind; to be saved in checkpoints.
    """

    keys: CollapseDetection
    seed: int
    context: int
    averages: dict[str, float] = field(default_factory=dict)

    def is_due(self, step: int) -> bool:
        """Whether a step is measured: the first, and every n-th.

        Args:
            step: The training step, from 1.
        """
        return step == 1 or step % self.keys.compute_freq == 0

    def measure(self, columns: Columns, score: Score, step: int) -> dict[str, float]:
        """The metrics of a step.

        Args:
            columns: Prompts and thoughts of the step's trajectories.
            score: Computes log-probabilities with the policy that wrote them.
            step: The training step, from 1.
        """
        most = sys.maxsize if self.keys.num_samples == "all" else self.keys.num_samples
        found: dict[str, float] = {}
        if self.keys.multi_turn_enabled:
            if replies := sum(columns["turn_counts_total"]):
                found["collapse/valid_thinking_rate"] = float(sum(columns["turn_counts"]) / replies)
            pairs = turns_of_trajectories(columns, most, np.random.default_rng((self.seed, step, 1)))
            found |= self._measured(TRAJECTORIES, pairs, score)
        if self.keys.first_turn_enabled:
            valid, total = sum(map(bool, columns["first_turn_reasoning_ids"])), len(columns["group_ids"])
            found["collapse/first_turn_num_total"], found["collapse/first_turn_num_valid"] = total, valid
            found["collapse/first_turn_valid_rate"] = valid / total
            pairs = first_turns(columns, most, np.random.default_rng((self.seed, step, 0)))
            found |= self._measured(FIRST_TURNS, pairs, score)
        return found

    def _measured(self, sample: str, pairs: Sequence[Pair], score: Score) -> dict[str, float]:
        longest = max((len(thought) for _, thought in pairs), default=0)
        kept = [pair for pair in pairs if len(pair[0][1]) + longest <= self.context]
        asked, owner = numbered(prompt for prompt, _ in kept)
        if len(asked) < 2:
            return {}
        prompts, thoughts = [prompt for _, prompt in asked], [thought for _, thought in kept]
        log_probs, eps, decay = cross_log_probs(prompts, thoughts, score), self.keys.std_eps, self.keys.ema_decay
        found = collapse_metrics(log_probs, owner, list(map(len, thoughts)), prompts, eps)
        for seq in ("", "_seq"):
            now, key = found[f"collapse/marginal_std{seq}"], f"{sample}{seq}"
            mean = self.averages[key] = decay * self.averages.get(key, now) + (1 - decay) * now
            found[f"collapse/marginal_std_ema{seq}"] = mean
            found[f"collapse/mi_zscore_ema{seq}"] = found[f"collapse/mi{seq}_estimate"] / (mean + eps)
        return {name.replace("collapse", sample): value for name, value in found.items()}
