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
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
from numpy.typing import ArrayLike, NDArray

from ragen.errors import InputError

RETRIEVAL_AT = (2, 4, 8)
STD_EPS = 1e-3

Floats = NDArray[np.float64]


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
    """The share of thoughts whose own prompt is among the best ``k``, the level of chance, and their difference.

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
