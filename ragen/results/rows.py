"""Rows of a run: the files beside ``rollouts.jsonl``, and what a row says of its episode.

A row is a line of JSON, one trajectory; :mod:`ragen.llm_agent.rollout.trajectories` lists its keys. Everything here
reads; :mod:`ragen.llm_agent.rollout.rollout_file` writes.

An episode says something of the model, or it does not: its environment failed, or a prompt got no reply. An
environment's failure comes first, since an episode without an environment has nothing more to ask.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, TypeAlias

from ragen.errors import ConfigError, counted
from ragen.validity import is_valid

Row: TypeAlias = Mapping[str, Any]

ROWS, ABOUT, USAGE, TIMES = "rollouts.jsonl", "run.json", "usage.json", "times.json"
REPLIES, RESULTS, PAGE = "journal.jsonl", "results.json", "report.html"
RECORDED = (ABOUT, USAGE, TIMES, REPLIES, RESULTS)
"""Files that a run writes beside its rows; a page can be written again."""
_NEEDED = {"env_id", "group_id", "tag", "seed", "success"}

JUDGED, ENV_ERROR, MISSING_REPLY = "judged", "env error", "missing reply"
FAULTS = ("cut_off", "filtered", "refused", "empty", "tool_calls")
"""Faults of a reply; a row's reply has the name of each that it has."""


def outcome(row: Row) -> str:
    """``JUDGED``, ``ENV_ERROR`` or ``MISSING_REPLY``."""
    if not is_valid(row):
        return ENV_ERROR
    return MISSING_REPLY if "error" in row else JUDGED


def count_replies(rows: Iterable[Row]) -> dict[str, Any]:
    """Counts replies, their faults and finish reasons; empty if the actor records nothing about replies.

    Returns:
        ``count``, the number of each of ``FAULTS``, and ``finish_reasons``, which counts them by the server's word;
        ``"unknown"`` is where a server said none.
    """
    replies = [reply for row in rows for reply in row.get("replies", ())]
    if not any(replies):
        return {}
    reasons = Counter(str(reply.get("finish_reason") or "unknown") for reply in replies)
    faults = {fault: sum(bool(reply.get(fault)) for reply in replies) for fault in FAULTS}
    return {"count": len(replies), **faults, "finish_reasons": dict(sorted(reasons.items()))}


# Files


def rows_of(run: Path) -> Path:
    """The file of a run's rows: ``rollouts.jsonl`` in its folder, or the given file itself."""
    return run / ROWS if run.is_dir() else run


def name_of(run: Path) -> str:
    """The name of a run: that of its folder, which in a sweep over models is ``actor.model=NAME``."""
    folder = run if run.is_dir() else run.parent
    return folder.resolve().name.removeprefix("actor.model=") or "run"


def read_rows(path: Path) -> list[dict[str, Any]]:
    """The rows of a file; an incomplete last line of a killed run is skipped.

    Raises:
        ConfigError: The file cannot be read, or another line is not a row.
    """
    try:
        *lines, rest = path.read_bytes().split(b"\n")
    except OSError as error:
        raise ConfigError(
            f"{path} cannot be read ({error.strerror}); expected the folder of a run, or its {ROWS}."
        ) from error
    rows = [_row(path, number, line) for number, line in enumerate(lines, 1) if line.strip()]
    try:
        return [*rows, _row(path, len(lines) + 1, rest)] if rest.strip() else rows
    except ConfigError:
        return rows


def _row(path: Path, number: int, line: bytes) -> dict[str, Any]:
    try:
        row = json.loads(line)
    except ValueError:
        row = None
    if not isinstance(row, dict) or not row.keys() >= _NEEDED:
        raise ConfigError(f"line {number} of {path} is not a trajectory record.")
    return row


def read_about(path: Path) -> dict[str, Any]:
    """The configuration that a run played, as flat keys.

    Args:
        path: Its ``run.json``.

    Raises:
        ConfigError: The file cannot be read.
    """
    try:
        about = json.loads(path.read_text("utf-8"))
    except (OSError, ValueError) as error:
        raise ConfigError(f"{path}, which says what the run played, cannot be read: {error}.") from error
    if not isinstance(about, dict):
        raise ConfigError(f"{path} does not say what a run played; expected keys and values.")
    return about


def read_beside(path: Path, name: str) -> dict[str, Any]:
    """A file of a run beside its rows; empty if there is none yet, or it cannot be read."""
    with suppress(OSError, ValueError, TypeError):
        return dict(json.loads(path.with_name(name).read_text("utf-8")))
    return {}


def unfinished(path: Path, rows: Iterable[Row]) -> str:
    """Says that a run lacks trajectories or replies, since its results are biased; otherwise empty.

    Args:
        path: The file of its rows. Without a readable ``run.json`` beside it the plan is unknown.
        rows: Its rows.
    """
    outcomes = [outcome(row) for row in rows]
    count, missing = len(outcomes), outcomes.count(MISSING_REPLY)
    planned = max(count, _planned(path))
    if not missing and count == planned:
        return ""
    lack = "lacks a reply" if missing == 1 else "lack a reply"
    told = f"{missing if count == planned else count:,} of {counted(planned, 'trajectory', 'trajectories')}"
    if missing:
        told += f" {lack}" if count == planned else f", and {missing:,} of those {lack}"
    return f"unfinished: {told}; episodes that end early are over-represented"


def _planned(path: Path) -> int:
    """Number of trajectories that a run was to play; 0 if unknown."""
    about = read_beside(path, ABOUT)
    section = f"es_manager.{about.get('mode')}"
    groups, size = about.get(f"{section}.env_groups"), about.get(f"{section}.group_size")
    return groups * size if isinstance(groups, int) and isinstance(size, int) else 0
