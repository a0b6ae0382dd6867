"""Measures whether thoughts depend on prompts: mutual information, entropies and retrieval.

All are computed from cross log-probabilities.
Let ``l[i, j]`` be the log-probability of thought ``i`` after prompt ``j``, ``matched[i]`` that after its own prompt and
``marginal[i] = logsumexp_j l[i, j] - log N`` that after a prompt drawn uniformly from the ``N`` given ones. Then

- mutual information ``I(X; Z) = mean(matched - marginal)``, at most ``log N``;
- conditional entropy ``H(Z | X) = -mean(matched)`` and entropy ``H(Z) = -mean(marginal)``; both are cross-entropies
  if the scorer is not the policy that wrote the thoughts;
- retrieval@k: the fraction of thoughts whose own prompt is among the ``k`` prompts under which they are most likely;
- z-score: the mutual information divided by the standard deviation of ``marginal``.

If a policy's thoughts do not depend on the prompt, mutual information is zero and retrieval at chance level, although
the entropy may be high ("template collapse"). The measures and their keys are those of RAGEN-2 (arXiv:2604.06268).

They are computed for a sample of pairs of a thought and its prompt. Samples are drawn as in RAGEN-2:

first turns
    The requested number of pairs, drawn from the first turns with a thought. The members of a group share a prompt.
trajectories
    The requested number of pairs: a trajectory drawn uniformly, and one of its turns drawn uniformly. Each pair has its
    own prompt; trajectories without a thought are skipped.

:class:`CollapseDetector` measures every n steps of a training.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, Self, TypeVar

import numpy as np
from numpy.typing import ArrayLike, NDArray

from ragen.errors import InputError
from ragen.llm_agent.config.context import CollapseSettings

RETRIEVAL_AT = (2, 4, 8)
STD_EPS = 1e-3

FIRST_TURNS, TRAJECTORIES = "first turns", "trajectories"
PREFIXES = {FIRST_TURNS: "collapse_first_turn_sample", TRAJECTORIES: "collapse_trajectory_sample"}
"""The prefix of a training's metrics for each sample, as in RAGEN."""
VALID_THINKING = "collapse/valid_thinking_rate"
Floats = NDArray[np.float64]
Ids = Sequence[int]
Score = Callable[[Sequence[Ids], Sequence[Ids]], ArrayLike]
"""Summed log-probabilities ``(thoughts, prompts)`` of prompts and thoughts; see ``ragen.training.scorer``."""


def collapse_metrics(
    log_probs: ArrayLike,
    owner: ArrayLike,
    lengths: ArrayLike,
    prompts: Sequence[Sequence[int]] | None = None,
    std_eps: float = STD_EPS,
) -> dict[str, float]:
    """RAGEN-2's measures of collapse, without the moving averages over training steps.

    Logarithms are natural. Keys with ``seq`` refer to whole thoughts, the others to tokens: log-probabilities are
    first divided by the thought's length.

    Args:
        log_probs: Summed log-probability of each thought after each prompt, ``(thoughts, prompts)``.
        owner: Index of each thought's own prompt, ``(thoughts,)``.
        lengths: Number of tokens of each thought, ``(thoughts,)``; 0 counts as 1.
        prompts: Token ids of each prompt. Equal prompts count as one, only for retrieval.
        std_eps: Added to the standard deviation by which a z-score is divided.

    Returns:
        Values by name, ``collapse/...``; empty for fewer than two prompts.

    Raises:
        InputError: Shapes do not match, there is no thought, a value is not finite, or an owner is not a prompt.
    """
    sums, own, tokens = _checked(log_probs, owner, lengths, prompts)
    count = sums.shape[1]
    if count < 2:
        return {}
    means = sums / np.maximum(tokens, 1)[:, None]
    matched, marginal = _matched_and_marginal(means, own)
    matched_seq, marginal_seq = _matched_and_marginal(sums, own)
    spread, spread_seq = float(marginal.std()), float(marginal_seq.std())
    information, information_seq = float((matched - marginal).mean()), float((matched_seq - marginal_seq).mean())
    return {
        "collapse/mi_estimate": information,
        "collapse/mi_upper_bound": math.log(count),
        "collapse/matched_log_prob_mean": float(matched.mean()),
        "collapse/marginal_log_prob_mean": float(marginal.mean()),
        "collapse/mi_seq_estimate": information_seq,
        **_retrieval(means, own, prompts),
        "collapse/conditional_entropy_est": -float(matched.mean()),
        "collapse/reasoning_entropy_est": -float(marginal.mean()),
        "collapse/conditional_entropy_seq_est": -float(matched_seq.mean()),
        "collapse/reasoning_entropy_seq_est": -float(marginal_seq.mean()),
        "collapse/marginal_std": spread,
        "collapse/marginal_std_seq": spread_seq,
        "collapse/mi_zscore": information / (spread + std_eps),
        "collapse/mi_zscore_seq": information_seq / (spread_seq + std_eps),
    }


def _checked(
    log_probs: ArrayLike, owner: ArrayLike, lengths: ArrayLike, prompts: Sequence[Sequence[int]] | None
) -> tuple[Floats, NDArray[np.int64], Floats]:
    sums, own, tokens = np.asarray(log_probs, np.float64), np.asarray(owner), np.asarray(lengths, np.float64)
    if sums.ndim != 2 or not sums.size:
        raise InputError(f"log_probs has shape {sums.shape}; expected (thoughts, prompts), at least one of each.")
    if own.shape != sums.shape[:1] or tokens.shape != sums.shape[:1]:
        raise InputError(
            f"owner has shape {own.shape} and lengths {tokens.shape}; expected ({len(sums)},), one entry per thought."
        )
    if not np.isfinite(sums).all():
        thought, prompt = (int(each[0]) for each in np.nonzero(~np.isfinite(sums)))
        raise InputError(f"log_probs[{thought}, {prompt}] is {sums[thought, prompt]}; expected finite numbers.")
    if own.dtype.kind not in "iu" or own.min() < 0 or own.max() >= sums.shape[1]:
        raise InputError(f"owner must contain indices of prompts, integers from 0 to {sums.shape[1] - 1}.")
    if prompts is not None and len(prompts) != sums.shape[1]:
        raise InputError(f"there are {len(prompts)} prompts, and log_probs has {sums.shape[1]} columns.")
    return sums, own.astype(np.int64), tokens


def _matched_and_marginal(scores: Floats, own: NDArray[np.int64]) -> tuple[Floats, Floats]:
    top = scores.max(axis=1)
    marginal = top + np.log(np.exp(scores - top[:, None]).mean(axis=1))
    return scores[np.arange(len(scores)), own], marginal


def _retrieval(scores: Floats, own: NDArray[np.int64], prompts: Sequence[Sequence[int]] | None) -> dict[str, float]:
    """How often a thought's own prompt is among the best ``k``, the level of chance, and their difference.

    As in RAGEN-2, chance is that of one draw among all columns, times ``k``, which is a bound if prompts are equal.
    """
    count = scores.shape[1]
    kinds: dict[tuple[int, ...], int] = {}
    keys = [(place,) for place in range(count)] if prompts is None else [tuple(map(int, each)) for each in prompts]
    kind = np.array([kinds.setdefault(each, len(kinds)) for each in keys])
    is_right = kind[np.argsort(-scores, axis=1, kind="stable")] == kind[own][:, None]
    chance = float((np.bincount(kind)[kind[own]] / count).mean())
    found: dict[str, float] = {}
    for k in (*RETRIEVAL_AT, 1):
        name = "" if k == 1 else f"@{k}"
        most = min(k, count)
        accuracy = float(is_right[:, :most].any(axis=1).mean())
        expected = min(1.0, chance * most)
        found |= {
            f"collapse/retrieval_accuracy{name}": accuracy,
            f"collapse/retrieval_chance_level{name}": expected,
            f"collapse/retrieval_above_chance{name}": accuracy - expected,
        }
    return found


# Samples of pairs


class Placed(Protocol):
    """The attributes of a pair of prompt and thought that sampling needs."""

    @property
    def trajectory(self) -> int:
        """The index of the trajectory."""

    @property
    def turn(self) -> int:
        """From 1."""


P = TypeVar("P", bound=Placed)


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


def sampled(pairs: Sequence[P], trajectories: int, how: str, samples: int | None, seed: Any) -> list[P]:
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
    of: dict[int, list[P]] = {}
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
        """Read the columns of a batch; see :class:`~ragen.llm_agent.tokens.collapse.CollapseColumns`.

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
        settings: What to measure, and when.
        averages: The moving averages of standard deviations, by sample and kind; to be saved in checkpoints.
    """

    def __init__(self, settings: CollapseSettings, seed: int = 0) -> None:
        """Begin without measurements.

        Args:
            settings: What to measure, and when.
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
