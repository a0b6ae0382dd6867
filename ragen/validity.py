"""Nothing that failed is learned from: one rule for trajectories whose environment failed.

An environment that fails for good (it raises twice, hangs, loses its worker too often, or its service is gone) says
nothing about the model. Its trajectory carries ``env_error``. Such a trajectory is not *valid*: it has no weight in a
loss, no vote in its group's mean, deviation or filter, and no place in a rate. It is counted, by type of error.

Everything that learns or measures asks this module and nothing else.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Hashable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from ragen.errors import EnvsFailedError, without_values

if TYPE_CHECKING:
    import numpy as np

ENV_ERROR = "env_error"
MASK, DROP_GROUP = POLICIES = ("mask", "drop_group")

_EXCEPTION = re.compile(r"[A-Za-z_][\w.]*(?=: | \(|$)")  # of "ValueError: no door (my_env.py, line 12)"


def env_error(trajectory: Mapping[str, Any]) -> str | None:
    """Returns why a trajectory's environment failed; None if the trajectory is valid.

    Args:
        trajectory: A rollout cache entry, a row of a rollout's file, or the last info of an episode. A rollout cache
            that is still being played is looked through turn by turn.
    """
    found = trajectory.get(ENV_ERROR)
    if not found:
        infos = (turn.get("info") or {} for turn in trajectory.get("history", ()))
        found = next((info[ENV_ERROR] for info in infos if info.get(ENV_ERROR)), None)
    return str(found) if found else None


def is_valid(trajectory: Mapping[str, Any]) -> bool:
    """Whether a trajectory may be learned from and counted in rates."""
    return env_error(trajectory) is None


def with_signal(groups: Sequence[Hashable], errors: Sequence[str | None], policy: str = MASK) -> np.ndarray:
    """Returns which trajectories may be learned from, as a boolean array.

    A failed trajectory may not. Nor may the last valid member of a group that lost the others, since an advantage
    compares at least two; a group that has a single member by design is not affected.

    Args:
        groups: Each trajectory's group.
        errors: Each trajectory's :func:`env_error`.
        policy: ``drop_group`` also leaves out all members of a group with a failed one.
    """
    sizes = Counter(groups)
    valid = Counter(group for group, error in zip(groups, errors, strict=True) if not error)
    least = {group: size if policy == DROP_GROUP else min(size, 2) for group, size in sizes.items()}
    import numpy as np  # late, so that help comes at once

    return np.array(
        [not error and valid[group] >= least[group] for group, error in zip(groups, errors, strict=True)], dtype=bool
    )


def error_type(error: str) -> str:
    """The type of an error: the name of an exception, or an event without its numbers: ``timed out after .. s``."""
    named = _EXCEPTION.match(error)
    return named.group() if named else without_values(error.partition(":")[0])


def failure_counts(errors: Iterable[str | None]) -> dict[str, int]:
    """Counts failed trajectories by type of error, the most frequent first; empty if all are valid."""
    return dict(Counter(error_type(error) for error in errors if error).most_common())


def failure_metrics(trajectories: Iterable[Mapping[str, Any]]) -> dict[str, float]:
    """``<tag>/env_error``, the share of failed trajectories, and ``<tag>/env_error/<type>``, their number by type.

    Tags without failures are left out.

    Args:
        trajectories: Trajectories with ``tag``.
    """
    errors: dict[str, list[str | None]] = {}
    for trajectory in trajectories:
        errors.setdefault(trajectory.get("tag", ""), []).append(env_error(trajectory))
    metrics: dict[str, float] = {}
    for tag, found in errors.items():
        counts = failure_counts(found)
        metrics |= {f"{tag}/{ENV_ERROR}": sum(counts.values()) / len(found)} if counts else {}
        metrics |= {f"{tag}/{ENV_ERROR}/{name}": float(count) for name, count in counts.items()}
    return metrics


def failures_in_words(errors: Iterable[str | None]) -> str:
    """The counts for a line of a log, such as ``3 ConnectionError, 1 timed out after .. s``; empty without failures."""
    return ", ".join(f"{count} {name}" for name, count in failure_counts(errors).items())


def check_share(errors: Sequence[str | None]) -> None:
    """Ends a run that is not about the model any more.

    Args:
        errors: The :func:`env_error` of each trajectory of the run so far.

    Raises:
        EnvsFailedError: More than half of the trajectories failed.
    """
    failed = [error for error in errors if error]
    if 2 * len(failed) > len(errors):
        raise EnvsFailedError(
            f"{len(failed)} of {len(errors)} trajectories failed with their environments "
            f"({failures_in_words(failed)}), so the run says little about the model. The last one: {failed[-1]}. "
            "Mend the environment or its service and start the run again."
        )
