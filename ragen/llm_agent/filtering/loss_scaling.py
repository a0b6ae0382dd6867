"""RAGEN-2's scaling of the loss where groups are left out: the fewer were kept, the less a step shall move the model.

``actor_rollout_ref.actor.filter_loss_scaling`` says by what the advantages are multiplied: ``none`` (the default) by
nothing, ``linear`` by the share of a step's groups that was kept, ``sqrt`` by that share's square root. Penalties for
entropy or for leaving the reference are left as they are, and so is what a critic learns.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

from ragen.llm_agent.filtering.measured import KEPT_RATIO
from ragen.settings import choice

KEY = "actor_rollout_ref.actor.filter_loss_scaling"
NONE = "none"
LOSS_SCALE = "rollout/filter_loss_scale"
"""The metric that says by what a step's advantages were multiplied."""

SCALINGS: dict[str, Callable[[float], float]] = {NONE: lambda share: 1.0, "linear": float, "sqrt": math.sqrt}
"""What the key may be, and the factor that it makes of the share of groups kept."""


def read_scaling(config: Any) -> str:
    """Which of ``SCALINGS`` a configuration asks for.

    Raises:
        ConfigError: None of them.
    """
    return choice(config, KEY, NONE, SCALINGS)


def scaling_metrics(scaling: str, metrics: Mapping[str, float]) -> dict[str, float]:
    """The factor for a step's advantages, to log; nothing where none is asked for.

    Args:
        scaling: A name of ``SCALINGS``.
        metrics: Those of the choice of groups; one that keeps all groups has no share among them.
    """
    return {} if scaling == NONE else {LOSS_SCALE: SCALINGS[scaling](metrics.get(KEPT_RATIO, 1.0))}
