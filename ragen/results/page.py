"""The command ``ragen report RUN``, and the page that it writes: a run for a browser, in one file.

The page is ``page.jinja``, a template, with ``page.css`` and ``page.js``. It loads no external resources, and is made
of what the run's files have; a rollout with ``report=true`` adds images, which only its process has.

Text of models and environments is untrusted. In the template it is escaped, like every value. Trajectories are data:
compressed JSON that the script reads and shows as text nodes, never as HTML. The content security policy allows the
page's own script and nothing else. A page of ten thousand trajectories opens at once since a trajectory becomes
elements only when it is looked at; ``rows`` has what the list shows and filters by, and ``pack`` elements the rest.
"""

from __future__ import annotations

import argparse
import base64
import hashlib
import json
import zlib
from collections.abc import Iterator, Mapping, Sequence
from importlib.resources import files
from pathlib import Path
from typing import Any

from ragen.commands import CommandParser, command
from ragen.errors import ConfigError, counted, shown_path, steady_text
from ragen.files import json_text, write_whole
from ragen.output import printable
from ragen.results.figures import evaluate, reward_of, whole
from ragen.results.rows import (
    ABOUT,
    FAULTS,
    JUDGED,
    PAGE,
    ROWS,
    TIMES,
    USAGE,
    Row,
    outcome,
    read_beside,
    read_rows,
    rows_of,
    unfinished,
)
from ragen.results.tables import cells, lines_of, percent
from ragen.validity import env_error, error_type

PROG = "ragen report"
_LOCAL = ("hf", "vllm")  # backends that load a model by its path
_LONGEST = 300  # characters of a text in the list
_LONGEST_LINE = 10_000  # characters of a line above the list, such as a command
_PACK = 64  # trajectories that are unpacked together, when one of them is looked at


def parser(prog: str = PROG) -> argparse.ArgumentParser:
    """The command line."""
    top = CommandParser(
        prog=prog,
        description="Write an HTML report of a rollout: results and trajectories, in one file that "
        "loads no external resources.",
        examples=(f"{prog} outputs/evaluate/NAME --output name.html",),
    )
    top.add_argument(
        "run",
        type=Path,
        nargs="?",
        metavar="RUN",
        help="the output_dir of a rollout, or its rollouts.jsonl (default: the newest run under outputs)",
    )
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
    path, output = newest_run(Path("outputs")) if options.run is None else rows_of(options.run), options.output
    page = output or path.with_name(PAGE)
    rows = read_rows(path)
    html = render(path, rows)
    try:
        write_whole(page, html)
    except OSError as error:
        raise ConfigError(f"{page} cannot be written: {error.strerror}; name another file with --output.") from error
    print(f"report of {counted(len(rows), 'trajectory', 'trajectories')} in {page}")
    if told := unfinished(path, rows):
        print(told)
    return 0


def newest_run(folder: Path) -> Path:
    """The rows of the run in a folder that was played last.

    Raises:
        ConfigError: There is none.
    """
    found = max(folder.rglob(ROWS), key=lambda path: path.stat().st_mtime, default=None)
    if found is None:
        raise ConfigError(f"there is no run under {shown_path(folder)}; name the output_dir of one: {PROG} FOLDER.")
    return found


def render(path: Path, rows: Sequence[Row], images: Mapping[int, Any] | None = None) -> str:
    """The page of a run as HTML.

    Args:
        path: The file of its rows, whose neighbors tell of the run.
        rows: Its rows.
        images: The images of each turn as data URIs, by environment id.

    Raises:
        ConfigError: There are no rows, or they are not of a rollout of this package.
    """
    from jinja2 import Environment, StrictUndefined  # late, so that help comes at once

    if not rows:
        raise ConfigError(f"{path} has no trajectory.")
    shown = [{**row, "images": images[row["env_id"]]} if images and row["env_id"] in images else row for row in rows]
    try:
        results = evaluate(rows)
        listed = [_listed(row) for row in rows]
    except (KeyError, TypeError, ValueError) as error:
        raise ConfigError(f"{path} is not a rollout of this package: {type(error).__name__}: {error}.") from error
    facts, configuration = _about(path, rows)
    folder = files(__package__)
    template, style, script = (folder.joinpath(f"page.{kind}").read_text("utf-8") for kind in ("jinja", "css", "js"))
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    environment = Environment(autoescape=True, finalize=_visible, undefined=StrictUndefined, trim_blocks=True)
    environment.filters["percent"] = percent
    return environment.from_string(template).render(
        digest=digest,
        style=style,
        script=script,
        title=_title(facts) or path.parent.name or path.name,
        facts=facts,
        configuration=configuration,
        unfinished=unfinished(path, rows),
        results=[(result, cells(result)) for result in results],
        lines=lines_of(whole(results), read_beside(path, USAGE)),
        **{"seconds": {}, "work": "", **read_beside(path, TIMES)},
        listed=json_text(listed).replace("<", "\\u003c"),
        packs=list(_packed([json_text(row) for row in shown])),
    )


def _visible(value: Any) -> Any:
    """A value for the template: a text in which no character hides or rearranges those around it."""
    return value if hasattr(value, "__html__") else printable(steady_text(value), _LONGEST_LINE)


# The run


def _about(path: Path, rows: Sequence[Row]) -> tuple[dict[str, str], dict[str, Any]]:
    """Facts about a run, and its configuration as flat keys."""
    settings = read_beside(path, ABOUT)
    run = settings.pop("run", {})
    seeds = sorted({row["seed"] for row in rows if row["seed"] is not None})
    backend = settings.get("actor.backend")
    facts = {
        "model": settings.get("actor.model" if backend not in _LOCAL else "actor_rollout_ref.model.path"),
        "backend": backend,
        "server": run.get("server") or settings.get("actor.base_url"),
        "mode": settings.get("mode"),
        "seeds": " to ".join(map(str, dict.fromkeys([*seeds[:1], *seeds[-1:]]))),
        "began": run.get("began"),
        "version": run.get("version"),
        "file": path,
        "command": run.get("command"),
    }
    return {name: str(value) for name, value in facts.items() if value}, settings


def _title(facts: Mapping[str, str]) -> str:
    model = facts.get("model") or facts.get("backend", "")
    return f"{model} ({facts['mode']})" if model and "mode" in facts else model


# Trajectories


def _listed(row: Row) -> dict[str, Any]:
    """The facts about a trajectory that the list shows, filters and sorts by."""
    if not all("role" in message and "content" in message for message in row.get("messages", ())):
        raise ValueError("a message has no role or no content")
    ended, error = outcome(row), env_error(row)
    faults = {fault.replace("_", " ") for fault in FAULTS for reply in row.get("replies", ()) if reply.get(fault)}
    invalid = {"invalid reply"} if any(row.get("invalid", ())) else set()
    return {
        "tag": steady_text(row["tag"])[:_LONGEST],
        "env": row["env_id"],
        "group": row["group_id"],
        "seed": row["seed"],
        "outcome": ended if ended != JUDGED else "success" if row["success"] else "no success",
        "failure": error_type(error)[:_LONGEST] if error else "",
        "replies": sorted(faults | invalid),
        "reward": reward_of(row),
        "penalty": row.get("penalty", 0),
        "turns": len(row["actions"]),
    }


def _packed(bodies: Sequence[str]) -> Iterator[tuple[int, str]]:
    """Packs of trajectories: the number of the first, and their compressed JSON in base 64."""
    for first in range(0, len(bodies), _PACK):
        body = f"[{','.join(bodies[first : first + _PACK])}]"
        yield first, base64.b64encode(zlib.compress(body.encode(), 6)).decode()


def unpacked(data: str) -> list[dict[str, Any]]:
    """The trajectories of a pack."""
    return json.loads(zlib.decompress(base64.b64decode(data)))
