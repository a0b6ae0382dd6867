"""The command ``ragen report RUN``: a page about a rollout that was played, from what it has written.

What only the running process knew is not in it: where the time went, and which worker played what. A rollout that is to
show these writes its report itself (``report=true``).
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ragen.commands import refusing
from ragen.errors import ConfigError

if TYPE_CHECKING:
    from ragen.llm_agent.report import Report

PROG = "ragen report"
PAGE, ABOUT = "report.html", "run.json"
TOLD = ("mode", "actor.backend", "actor.model", "actor.base_url")


def parser(prog: str = PROG) -> argparse.ArgumentParser:
    """The command line, under this name."""
    top = argparse.ArgumentParser(
        prog=prog,
        description="Write one page about a rollout that was played: results and trajectories, in one file that "
        "loads nothing from elsewhere.",
        epilog=f"Example: {prog} outputs/evaluate/NAME --output name.html",
    )
    top.add_argument("run", type=Path, metavar="RUN", help="the output_dir of a rollout, or its rollouts.jsonl")
    top.add_argument("-o", "--output", type=Path, metavar="FILE", help="the page (default: report.html beside it)")
    return top


@refusing
def main(argv: Sequence[str] | None = None, prog: str = PROG) -> int:
    """Run the command.

    Args:
        argv: Its arguments; None takes the process's own.
        prog: The program's name.

    Returns:
        The exit code: 0, or 2 where there is nothing to write about, or nowhere to write it.
    """
    options = parser(prog).parse_args(argv)
    from ragen.llm_agent.rollout.rollout_file import rows_of

    rows = rows_of(options.run)
    page = options.output or rows.with_name(PAGE)
    report = report_of_rows(rows)
    _write(report, page)
    print(f"report of {len(report.episodes)} trajectories in {page}")
    return 0


def _write(report: Report, page: Path) -> None:
    from ragen.llm_agent.report import write_report

    try:
        write_report(report, page)
    except OSError as error:
        raise ConfigError(f"the report cannot be written to {page}: {error.strerror}; try another -o.") from error


def report_of_rows(path: Path) -> Report:
    """The report of a file of trajectories.

    Args:
        path: A ``rollouts.jsonl``; what ``run.json`` beside it says is told too.

    Raises:
        ConfigError: The file cannot be read, has no trajectory, or has something else in it.
    """
    from ragen.llm_agent.report import Episode, Report
    from ragen.llm_agent.rollout.rollout_file import read_records

    records = read_records(path)
    if not records:
        raise ConfigError(f"{path} has no trajectory.")
    try:
        episodes = [
            Episode(state_of(record), record["seed"], "", None, record.get("error"), record.get("replies", ()))
            for record in records
        ]
    except (KeyError, TypeError, ValueError) as error:
        raise ConfigError(f"{path} is not of a rollout of this package: {type(error).__name__}: {error}.") from error
    notes = ["Written from the trajectories alone, so it does not say where the time went."]
    return Report(f"Rollout ({path.parent.name or path.name})", _facts(path), episodes, notes=notes)


def _facts(path: Path) -> dict[str, Any]:
    try:
        about = json.loads(path.with_name(ABOUT).read_text("utf-8"))
    except (OSError, ValueError):
        about = {}
    known = about if isinstance(about, dict) else {}
    return {"file": path} | {name: known[name] for name in TOLD if known.get(name) is not None}


def state_of(record: Mapping[str, Any]) -> dict[str, Any]:
    """A record as the rollout cache that it was made of, as far as a page shows it.

    Args:
        record: See :mod:`~ragen.llm_agent.rollout.trajectories`.
    """
    from ragen.llm_agent.backends.prompt import read_prompt, text_of

    kept = {name: record[name] for name in ("env_id", "group_id", "tag", "penalty", "metrics")}
    kept |= {name: record[name] for name in ("env_error", "parent", "turn") if name in record}
    if "messages" not in record:  # rows without texts
        played = zip(record["actions"], record["rewards"], strict=True)
        return kept | {"history": [{"state": "", "actions": a, "reward": r, "info": {}} for a, r in played]}
    chat = record["messages"]
    asked = [place for place, message in enumerate(chat) if message["role"] == "user"]
    replies = [text_of(message) for message in chat if message["role"] == "assistant"]
    turns = zip(asked, replies, record["actions"], record["rewards"], record["infos"], strict=False)
    history = [
        {
            "state": read_prompt(chat[: place + 1], 1).state,
            "llm_response": reply,
            "actions": actions,
            "reward": reward,
            "info": info,
        }
        for place, reply, actions, reward, info in turns
    ]
    return kept | {"history": history}
