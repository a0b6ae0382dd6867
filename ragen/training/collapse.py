"""Collapse of thoughts during training: samples of thoughts, measured every n steps.

The measures of :func:`ragen.results.collapse_metrics` are computed for a sample of pairs of a thought and its prompt.
Samples are drawn as in RAGEN-2:

first turns
    The requested number of pairs, drawn from the first turns with a thought. The members of a group share a prompt.
trajectories
    The requested number of pairs: a trajectory drawn uniformly, and one of its turns drawn uniformly. Each pair has its
    own prompt; trajectories without a thought are skipped.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Self

import numpy as np
from numpy.typing import ArrayLike

from ragen.llm_agent import CollapseSettings
from ragen.results import STD_EPS, collapse_metrics

FIRST_TURNS, TRAJECTORIES = "first turns", "trajectories"
PREFIXES = {FIRST_TURNS: "collapse_first_turn_sample", TRAJECTORIES: "collapse_trajectory_sample"}
"""The prefix of a training's metrics for each sample, as in RAGEN."""
VALID_THINKING = "collapse/valid_thinking_rate"
Ids = Sequence[int]
Score = Callable[[Sequence[Ids], Sequence[Ids]], ArrayLike]
"""Summed log-probabilities ``(thoughts, prompts)`` of prompts and thoughts, as ``Learner.scores_of_thoughts``."""


# Samples of pairs


@dataclass(frozen=True)
class Thought:
    """A thought and its prompt as tokens.

    Attributes:
        trajectory: The index of the trajectory.
        group: The trajectory's group.
        turn: The turn, from 1.
        prompt: The tokens before the thought.
        ids: The thought's tokens, at least one.
    """

    trajectory: int
    group: Any
    turn: int
    prompt: tuple[int, ...]
    ids: tuple[int, ...]


def sampled(pairs: Sequence[Thought], trajectories: int, how: str, samples: int | None, seed: Any) -> list[Thought]:
    """A sample of pairs, drawn as in RAGEN-2.

    Args:
        pairs: All pairs.
        trajectories: Number of trajectories, including those without a thought.
        how: ``FIRST_TURNS`` or ``TRAJECTORIES``.
        samples: Maximum number of pairs; None for their total number.
        seed: A seed for ``numpy.random.default_rng``.
    """
    draw = np.random.default_rng(seed)
    if how == FIRST_TURNS:
        first = [pair for pair in pairs if pair.turn == 1]
        if samples is None or samples >= len(first):
            return first
        return [first[place] for place in sorted(draw.choice(len(first), samples, replace=False))]
    of: dict[int, list[Thought]] = {}
    for pair in pairs:
        of.setdefault(pair.trajectory, []).append(pair)
    count = len(pairs) if samples is None else min(samples, len(pairs))
    drawn = draw.integers(trajectories, size=count) if pairs else ()
    return [of[place][draw.integers(len(of[place]))] for place in map(int, drawn) if place in of]


def measured(
    pairs: Sequence[Thought], score: Score, by_group: bool, context: int | None = None, std_eps: float = STD_EPS
) -> dict[str, float]:
    """The measures of a sample. Equal prompts, and equal thoughts, are scored once.

    Args:
        pairs: The sample.
        score: Computes log-probabilities.
        by_group: Whether pairs of one group with equal prompts share a column; otherwise each pair has its own.
        context: Maximum number of tokens of prompt and thought together; longer pairs are excluded.
        std_eps: See :func:`collapse_metrics`.

    Returns:
        The numbers ``thoughts``, ``prompts`` and ``too_long`` (excluded pairs), and the keys of
        :func:`collapse_metrics`.
    """
    longest = max((len(pair.ids) for pair in pairs), default=0)
    kept = [pair for pair in pairs if context is None or len(pair.prompt) + longest <= context]
    columns: dict[Any, int] = {}
    owner = [
        columns.setdefault((pair.group, pair.prompt) if by_group else at, len(columns)) for at, pair in enumerate(kept)
    ]
    found: dict[str, float] = {"thoughts": len(kept), "prompts": len(columns), "too_long": len(pairs) - len(kept)}
    if len(columns) < 2:
        return found
    shown = [key[1] if by_group else kept[key].prompt for key in columns]
    asked = {prompt: place for place, prompt in enumerate(dict.fromkeys(shown))}
    said = {ids: place for place, ids in enumerate(dict.fromkeys(pair.ids for pair in kept))}
    matrix = np.asarray(score(list(asked), list(said)), np.float64)
    log_probs = matrix[np.ix_([said[pair.ids] for pair in kept], [asked[prompt] for prompt in shown])]
    return found | collapse_metrics(log_probs, owner, [len(pair.ids) for pair in kept], shown, std_eps)


# During training


@dataclass(frozen=True)
class PlayedThoughts:
    """The thoughts in the trajectories of a training step.

    Attributes:
        thoughts: All thoughts with their prompts.
        trajectories: Number of trajectories.
        replies: Number of replies.
    """

    thoughts: Sequence[Thought]
    trajectories: int
    replies: int

    @classmethod
    def of_columns(cls, columns: Mapping[str, Any], groups: Sequence[Any]) -> Self:
        """Read the columns of a batch; see :func:`~ragen.llm_agent.batches.collapse.collapse_columns`.

        Args:
            columns: The columns of all turns, or only of first turns.
            groups: The group of each trajectory.
        """
        if "all_turns_prompt_ids" in columns:
            each = list(zip(columns["all_turns_prompt_ids"], columns["all_turns_reasoning_ids"], strict=True))
            replies = int(sum(columns["turn_counts_total"]))
        else:
            first = zip(columns["first_turn_prompt_ids"], columns["first_turn_reasoning_ids"], strict=True)
            each, replies = [([prompt], [thought]) for prompt, thought in first], len(groups)
        starts = [tuple(prompt) for prompt in columns.get("first_turn_prompt_ids", ())]
        thoughts = []
        for place, (prompts, said) in enumerate(each):
            for at, (prompt, ids) in enumerate(zip(prompts, said, strict=True), 1):
                is_first = at == 1 and (not starts or tuple(prompt) == starts[place])
                turn = at if is_first or at > 1 else 2  # the first turn that has a thought may be a later one
                if len(ids):
                    thoughts.append(Thought(place, groups[place], turn, tuple(prompt), tuple(ids)))
        return cls(thoughts, len(groups), replies)


class CollapseDetector:
    """Measures collapse every few steps of a training, with RAGEN's keys.

    ``collapse_first_turn_sample/..`` and ``collapse_trajectory_sample/..`` have the keys of ``collapse_metrics`` and
    those of moving averages, ``marginal_std_ema`` and ``mi_zscore_ema`` (with ``_seq`` for whole thoughts).
    ``collapse/..`` has the fractions of replies with a thought.

    Attributes:
        settings: Measurements and their intervals.
        averages: The moving averages of standard deviations, by sample and kind; to be saved in checkpoints.
    """

    def __init__(self, settings: CollapseSettings, seed: int = 0) -> None:
        """Begin without measurements.

        Args:
            settings: Measurements and their intervals.
            seed: Determines the samples, together with the step.
        """
        self.settings = settings
        self.averages: dict[str, float] = {}
        self._seed = seed

    def is_due(self, step: int) -> bool:
        """Whether a step is measured: the first, and every n-th.

        Args:
            step: The training step, from 1.
        """
        return bool(self.settings) and step > 0 and (step == 1 or step % self.settings.every == 0)

    def measure(self, played: PlayedThoughts, score: Score, step: int, context: int | None = None) -> dict[str, float]:
        """The metrics of a step.

        Args:
            played: The thoughts of the step.
            score: Computes log-probabilities with the policy that wrote them.
            step: The training step, from 1.
            context: The policy's maximum number of tokens.
        """
        found: dict[str, float] = {}
        if self.settings.all_turns:
            if played.replies:
                found[VALID_THINKING] = len(played.thoughts) / played.replies
            found |= self._sample(TRAJECTORIES, played, score, step, context)
        if self.settings.first_turn:
            valid, total = sum(thought.turn == 1 for thought in played.thoughts), played.trajectories
            found["collapse/first_turn_num_total"], found["collapse/first_turn_num_valid"] = total, valid
            found["collapse/first_turn_valid_rate"] = valid / total if total else 0.0
            found |= self._sample(FIRST_TURNS, played, score, step, context)
        return found

    def _sample(
        self, how: str, played: PlayedThoughts, score: Score, step: int, context: int | None
    ) -> dict[str, float]:
        place = (FIRST_TURNS, TRAJECTORIES).index(how)
        pairs = sampled(played.thoughts, played.trajectories, how, self.settings.samples, (self._seed, step, place))
        found = measured(pairs, score, how == FIRST_TURNS, context, self.settings.std_eps)
        named = {name: value for name, value in found.items() if name.startswith("collapse/")}
        if named:
            named |= self._averaged(PREFIXES[how], named)
        return {f"{PREFIXES[how]}/{name.removeprefix('collapse/')}": value for name, value in named.items()}

    def _averaged(self, sample: str, found: Mapping[str, float]) -> dict[str, float]:
        averaged: dict[str, float] = {}
        for seq, information in (("", "mi_estimate"), ("_seq", "mi_seq_estimate")):
            now, key = found[f"collapse/marginal_std{seq}"], f"{sample}{seq}"
            before = self.averages.get(key, now)
            mean = self.averages[key] = self.settings.ema_decay * before + (1 - self.settings.ema_decay) * now
            scaled = found[f"collapse/{information}"] / (mean + self.settings.std_eps)
            averaged |= {f"collapse/marginal_std_ema{seq}": mean, f"collapse/mi_zscore_ema{seq}": scaled}
        return averaged
