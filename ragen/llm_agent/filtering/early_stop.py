"""RAGEN-2's early stopping: training that has stalled ends, with a reason.

============================  ========================================================================================
``early_stopped/..``          condition
============================  ========================================================================================
``reward_variance_collapse``  for ten steps in a row, the groups' mean standard deviation of scores is below a tenth
                              of its mean over the first ten
``low_validation_success``    for five validations in a row, a tag's success is below 1 %
``empty_filtered_steps``      ``rollout_filter_empty_stop_steps`` steps in a row, no group is left to train on
============================  ========================================================================================

RAGEN of 2026 always stops early. Here ``trainer.early_stop`` enables it.
Steps without groups count only for the third condition.
"""

from __future__ import annotations

from collections.abc import Mapping
from statistics import fmean
from typing import Any

from ragen.config.loading import as_config
from ragen.llm_agent.filtering.group_filter import read_empty_stop

KEY = "trainer.early_stop"
METRIC = "early_stopped"
WINDOW = 10  # steps of the first mean, and consecutive steps below a fraction of it
SHARE = 0.1
LOW_SUCCESS, VALIDATIONS = 0.01, 5
VARIANCE, SUCCESS, EMPTY = "reward_variance_collapse", "low_validation_success", "empty_filtered_steps"
REASONS = {
    VARIANCE: f"the rewards of a group hardly differ any more: {WINDOW} steps in a row, their standard deviation was "
    f"below {SHARE:.0%} of that of the first {WINDOW}",
    SUCCESS: f"success was below {LOW_SUCCESS:.0%} at {VALIDATIONS} validations in a row",
    EMPTY: "no group was left to train on, several steps in a row",
}


class EarlyStop:
    """Decides when to stop.

    Attributes:
        kind: The reason, a key of :data:`REASONS`; None before that.
    """

    def __init__(self, is_on: bool, most_empty: int) -> None:
        """Begin without observations.

        Args:
            is_on: Whether early stopping is enabled.
            most_empty: Maximum number of consecutive steps without a group; 0 for no limit.
        """
        self.kind: str | None = None
        self._is_on = is_on
        self._most_empty = most_empty
        self._first: list[float] = []
        self._recent: list[float] = []
        self._low: dict[str, int] = {}
        self._empty = 0

    @classmethod
    def read(cls, config: Any) -> EarlyStop:
        """Read ``trainer.early_stop`` and ``rollout_filter_empty_stop_steps``.

        Raises:
            ConfigError: One has an invalid value.
        """
        return cls(as_config(config).trainer.early_stop, read_empty_stop(config))

    def after_step(self, spread: float, groups_kept: int) -> None:
        """Record a training step.

        Args:
            spread: The mean over all groups played of the standard deviation of their scores.
            groups_kept: Number of groups that were trained on.
        """
        self._empty = 0 if groups_kept else self._empty + 1
        if self._empty and self._empty == self._most_empty:
            self._stop(EMPTY)
        if not groups_kept:
            return
        if len(self._first) < WINDOW:
            self._first.append(spread)
            return
        self._recent = [*self._recent, spread][-WINDOW:]
        if len(self._recent) == WINDOW and max(self._recent) < SHARE * fmean(self._first):
            self._stop(VARIANCE)

    def after_validation(self, success: Mapping[str, float]) -> None:
        """Record a validation.

        Args:
            success: The success rate of each tag.
        """
        for tag, rate in success.items():
            self._low[tag] = self._low.get(tag, 0) + 1 if rate < LOW_SUCCESS else 0
            if self._low[tag] >= VALIDATIONS:
                self._stop(SUCCESS)

    @property
    def reason(self) -> str:
        """The reason in words; empty if training goes on."""
        return REASONS.get(self.kind or "", "")

    @property
    def metrics(self) -> dict[str, float]:
        """``early_stopped/<reason>``, if training is to stop."""
        return {} if self.kind is None else {f"{METRIC}/{self.kind}": 1.0}

    def state_dict(self) -> dict[str, Any]:
        """The state, for :meth:`load_state_dict`."""
        counts = {"first": self._first, "recent": self._recent, "low": self._low, "empty": self._empty}
        return counts | {"kind": self.kind}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore the state from :meth:`state_dict`."""
        self._first, self._recent = list(state["first"]), list(state["recent"])
        self._low, self._empty, self.kind = dict(state["low"]), state["empty"], state["kind"]

    def _stop(self, kind: str) -> None:
        if self._is_on and self.kind is None:
            self.kind = kind
