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
from numpy.typing import ArrayLike

from ragen.errors import InputError
from ragen.statistics import numbered

RETRIEVAL_AT = {1: "", 2: "@2", 4: "@4", 8: "@8"}


def collapse_metrics(
    log_probs: ArrayLike,
    owner: ArrayLike,
    lengths: ArrayLike,
    prompts: Sequence[Sequence[int]] | None = None,
    std_eps: float = 1e-3,
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
    sums, own, tokens = np.asarray(log_probs, np.float64), np.asarray(owner), np.asarray(lengths, np.float64)
    if sums.ndim != 2 or not sums.size:
        raise InputError(f"log_probs has shape {sums.shape}; expected (thoughts, prompts), at least one of each.")
    thoughts, count = sums.shape
    kind = np.array(numbered(range(count) if prompts is None else [tuple(map(int, each)) for each in prompts])[1])
    if not own.shape == tokens.shape == (thoughts,) or len(kind) != count:
        raise InputError(
            f"log_probs has shape {sums.shape}, owner {own.shape} and lengths {tokens.shape}, of {len(kind)} prompts; "
            "expected (thoughts, prompts), (thoughts,) and (thoughts,)."
        )
    if not np.isfinite(sums).all():
        raise InputError(f"log_probs{np.argwhere(~np.isfinite(sums))[0].tolist()} is not a finite number.")
    if own.dtype.kind not in "iu" or own.min() < 0 or own.max() >= count:
        raise InputError(f"owner must contain indices of prompts, integers from 0 to {count - 1}.")
    if count < 2:
        return {}
    found = {"collapse/mi_upper_bound": math.log(count)}
    means = sums / np.maximum(tokens, 1)[:, None]
    for seq, scores in (("", means), ("_seq", sums)):
        matched, top = scores[np.arange(thoughts), own], scores.max(axis=1)
        marginal = top + np.log(np.exp(scores - top[:, None]).mean(axis=1))
        information, spread = float((matched - marginal).mean()), float(marginal.std())
        found |= {
            f"collapse/mi{seq}_estimate": information,
            f"collapse/conditional_entropy{seq}_est": -float(matched.mean()),
            f"collapse/reasoning_entropy{seq}_est": -float(marginal.mean()),
            f"collapse/marginal_std{seq}": spread,
            f"collapse/mi_zscore{seq}": information / (spread + std_eps),
        }
    found["collapse/matched_log_prob_mean"] = -found["collapse/conditional_entropy_est"]
    found["collapse/marginal_log_prob_mean"] = -found["collapse/reasoning_entropy_est"]
    is_own = kind[np.argsort(-means, axis=1, kind="stable")] == kind[own][:, None]
    # as in RAGEN-2, chance is that of one draw among all columns, times k, which is a bound if prompts are equal
    rank, chance = is_own.argmax(axis=1), float(is_own.mean(axis=1).mean())
    for k, name in RETRIEVAL_AT.items():
        accuracy, expected = float((rank < k).mean()), min(1.0, chance * min(k, count))
        found |= {
            f"collapse/retrieval_accuracy{name}": accuracy,
            f"collapse/retrieval_chance_level{name}": expected,
            f"collapse/retrieval_above_chance{name}": accuracy - expected,
        }
    return found
