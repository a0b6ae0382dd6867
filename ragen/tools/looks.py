"""What follows from what an environment showed and told while it was examined."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ragen.tools.check_report import Status
from ragen.tools.recording import Recording

Found = tuple[Status, str, str]
"""The status, what was found, and what the author can do about it."""


def shown_found(unshown: Mapping[str, str]) -> Found:
    """Whether a model sees what ``reset`` and ``step`` return; of each, what ``render()`` did not give, in words."""
    if not unshown:
        return "ok", "render() shows what reset() and step() return", ""
    told = " and ".join(f"{call}() returned {what}" for call, what in unshown.items())
    fix = "A model sees what render() gives, and nothing else: let render() give the observation, and return render()."
    return "warn", f"{told}, which render() does not show", fix


def metrics_found(recording: Recording) -> Found:
    """Which metrics the environment's info gives."""
    steps = [step for steps in recording.episodes.values() for step in steps]
    values = {key: value for step in steps for key, value in (step.info or {}).items()}
    metrics = sorted(key for key, value in values.items() if _is_number(value))
    others = sorted(str(key) for key in values if key not in metrics)
    text = f"from info: {', '.join(metrics) or 'none'}"
    text += f"; no numbers, so no metrics: {', '.join(others)}" if others else ""
    if "success" in values:
        return "ok", text, ""
    return "note", f"{text}; no 'success' seen", "The last turn's info['success'] decides success."


def _is_number(value: Any) -> bool:
    try:
        return not isinstance(value, str | bytes) and float(value) is not None
    except (TypeError, ValueError):
        return False
