"""What a report is of: who answered, where, when, with which seeds and configuration, by which command."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Self

from ragen.llm_agent.rollout.rollout_file import ABOUT, RUNS, about_run
from ragen.llm_agent.rollout.this_run import this_run

_LOCAL = ("hf", "vllm")


@dataclass(frozen=True)
class About:
    """What is known of a run; what is not known is left out.

    Attributes:
        facts: A name and what to say.
        command: What to type to do it again; empty where no command did it.
        configuration: All that decides what is played and by whom, as flat keys.
    """

    facts: Mapping[str, Any] = field(default_factory=dict)
    command: str = ""
    configuration: Mapping[str, Any] = field(default_factory=dict)

    @classmethod
    def of_config(cls, config: Any, mode: str, seeds: Sequence[int | None] = ()) -> Self:
        """What a running rollout knows of itself.

        Args:
            config: The whole configuration.
            mode: ``"train"`` or ``"val"``.
            seeds: Of its episodes.

        Raises:
            ConfigError: A key cannot be read.
        """
        now, settings = this_run(config), about_run(config, mode)
        return cls(facts_of(settings, [now], seeds), now["command"], settings)

    @classmethod
    def of_folder(cls, rows: Path, seeds: Sequence[int | None] = ()) -> Self:
        """What stands beside a file of trajectories; whatever cannot be read is left out."""
        settings = _read_settings(rows.with_name(ABOUT))
        runs = _read_runs(rows.with_name(RUNS))
        command = str(runs[-1].get("command", "")) if runs else ""
        return cls({"file": rows, **facts_of(settings, runs, seeds)}, command, settings)


def facts_of(
    settings: Mapping[str, Any], runs: Sequence[Mapping[str, Any]], seeds: Sequence[int | None]
) -> dict[str, str]:
    """What to say of a run at the top of its page.

    Args:
        settings: Flat keys, as ``run.json`` has them.
        runs: Each time that it was run, as ``runs.jsonl`` has them.
        seeds: Of its episodes.
    """
    last, backend = runs[-1] if runs else {}, settings.get("actor.backend")
    facts = {
        "model": settings.get("actor.model") or (_local_model(settings) if backend in _LOCAL else None),
        "backend": backend,
        "server": last.get("server") or settings.get("actor.base_url"),
        "mode": settings.get("mode"),
        "seeds": _span(seeds),
        "date": _dates(runs),
        "version": last.get("version"),
    }
    return {name: str(value) for name, value in facts.items() if value}


def _local_model(settings: Mapping[str, Any]) -> Any:
    return settings.get("actor_rollout_ref.model.path")


def _span(seeds: Sequence[int | None]) -> str:
    known = sorted({seed for seed in seeds if seed is not None})
    if not known:
        return ""
    if len(known) == 1:
        return str(known[0])
    gaps = "" if len(known) == known[-1] - known[0] + 1 else f", {len(known)} of them"
    return f"{known[0]} to {known[-1]}{gaps}"


def _dates(runs: Sequence[Mapping[str, Any]]) -> str:
    began = [str(run["began"]) for run in runs if run.get("began")]
    if len(began) < 2:
        return "".join(began)
    return f"{began[0]}, went on {len(began) - 1} {'time' if len(began) == 2 else 'times'}, last {began[-1]}"


def _read_settings(path: Path) -> dict[str, Any]:
    try:
        settings = json.loads(path.read_text("utf-8"))
    except (OSError, ValueError):
        return {}
    return settings if isinstance(settings, dict) else {}


def _read_runs(path: Path) -> list[dict[str, Any]]:
    try:
        lines = path.read_text("utf-8").splitlines()
    except (OSError, ValueError):
        return []
    return [run for run in map(_run, lines) if run]


def _run(line: str) -> dict[str, Any]:
    try:
        run = json.loads(line)
    except ValueError:
        return {}
    return run if isinstance(run, dict) else {}
