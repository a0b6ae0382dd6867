"""The command ``ragen report RUN``: a report of a finished rollout, from its files.

Information that only the running process had is missing: where the time went, and which worker played what. A rollout
writes a report with these itself (``report=true``).
"""

from __future__ import annotations

import argparse
import itertools
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ragen.commands import CommandParser, command
from ragen.errors import ConfigError

if TYPE_CHECKING:
    from ragen.llm_agent.report import Report
    from ragen.llm_agent.report.contents import Episode


PROG = "ragen report"
PAGE = "report.html"


def parser(prog: str = PROG) -> argparse.ArgumentParser:
    """The command line."""
    top = CommandParser(
        prog=prog,
        description="Write an HTML report of a rollout: results and trajectories, in one file that "
        "loads no external resources.",
        examples=(f"{prog} outputs/evaluate/NAME --output name.html",),
    )
    top.add_argument("run", type=Path, metavar="RUN", help="the output_dir of a rollout, or its rollouts.jsonl")
    top.add_argument(
        "-o", "--output", type=Path, metavar="FILE", help="the report file (default: report.html in the same folder)"
    )
    return top


@command(parser, PROG)
def main(options: argparse.Namespace, prog: str) -> int:
    """Run the command.

    Returns:
        The exit code: 0, or 2 if there are no trajectories or the report cannot be written.
    """
    from ragen.llm_agent.report.page import render, write_page
    from ragen.llm_agent.rollout.rollout_file import check_output, rows_of

    check_output(options.output)
    rows = rows_of(options.run)
    page = options.output or rows.with_name(PAGE)
    report = report_of_rows(rows)
    kept = None if options.output else _keep_times(page)
    write_page(render(report), page)
    count = len(report.episodes)
    if kept is not None:
        print(f"the run's own report, which shows where the time went, is now {kept}")
    print(f"report of {count:,} {'trajectory' if count == 1 else 'trajectories'} in {page}")
    if told := report.unfinished:
        print(told)
    return 0


def _keep_times(page: Path) -> Path | None:
    """Rename the report that a run wrote itself, if there is one: what it shows of times is in no other file."""
    from ragen.llm_agent.report.page import TIMES

    try:
        if TIMES.encode() not in page.read_bytes():
            return None
        free = (page.with_name(f"report_of_run_{number}.html") for number in itertools.count(1))
        return page.rename(next(each for each in free if not each.exists()))
    except FileNotFoundError:
        return None
    except OSError as error:
        raise ConfigError(f"{page} cannot be renamed: {error.strerror}; name another file with --output.") from error


def report_of_rows(path: Path, title: str = "") -> Report:
    """The report of a file of trajectories.

    Args:
        path: A ``rollouts.jsonl``; the other files of the run are used too.
        title: The page's title; empty for the model's name, or the folder's if no model is named.

    Raises:
        ConfigError: The file cannot be read, has no trajectory, or has something else in it.
    """
    from ragen.llm_agent.report import Report
    from ragen.llm_agent.report.contents import About
    from ragen.llm_agent.rollout.rollout_file import USAGE, read_usage, unfinished

    records, episodes = read_episodes(path)
    about = About.of_folder(path, [episode.seed for episode in episodes])
    notes = ["Written from the trajectories only, so it does not show where the time went."]
    notes += _about_windows(about.configuration)
    title = title or about.title or f"Rollout ({path.parent.name or path.name})"
    return Report(
        title,
        episodes=episodes,
        notes=notes,
        about=about,
        unfinished=unfinished(path, records),
        usage=read_usage(path.with_name(USAGE)),
    )


def read_episodes(path: Path) -> tuple[list[dict[str, Any]], list[Episode]]:
    """The trajectories of a file, at least one, as records and as episodes.

    Args:
        path: A ``rollouts.jsonl``.

    Raises:
        ConfigError: The file cannot be read, has no trajectory, or has something else in it.
    """
    from ragen.llm_agent.report.contents import episodes_of
    from ragen.llm_agent.rollout.rollout_file import read_records

    records = read_records(path)
    if not records:
        raise ConfigError(f"{path} has no trajectory.")
    return records, episodes_of(records, path)


def _about_windows(configuration: Mapping[str, Any]) -> list[str]:
    """A note on turns that the page shows in a prompt although the model's window did not include them."""
    window = configuration.get("agent_proxy.max_context_window")
    is_whole = configuration.get("agent_proxy.context_window_mode") in (None, "full")
    if is_whole and not (isinstance(window, int) and window > 0):
        return []
    return [
        "Prompts are shown with all their turns; the model was shown the last ones alone, as the configuration says."
    ]
