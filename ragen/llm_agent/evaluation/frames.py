"""Runs as tables, a row per trajectory or per turn: ``ragen.frames(...)``, and the command ``ragen frame RUN...``.

Columns of both: ``run`` (as it was named), ``model``, ``env_id``, ``group_id``, ``tag``, ``seed``, ``mode``,
``outcome`` (``judged``, ``env error`` or ``missing reply``), ``success``.

A trajectory has besides ``reward`` (the sum of its turns', without ``penalty``), ``penalty``, ``turns``, ``actions``
(how many were executed), ``invalid_replies`` (how many were penalized, as in the table of results), ``error``,
``env_error``, its metrics as ``metrics.NAME`` (without the tag), what its replies used (``prompt_tokens``,
``completion_tokens``, ``cost``), how many of them were ``cut_off``, ``filtered``, ``refused``, ``empty``, and
``messages``, the chat.

A turn has ``turn`` (from 1), ``state``, ``reply`` (as the model wrote it), ``thought``, ``actions`` (their names, or
keys without names, as texts), ``reward``, ``invalid_reply``, ``action_is_valid`` and ``action_is_effective`` (of the
environment: False where no action was executed, None where it does not say), what its reply used and was,
``finish_reason``, and ``info`` as JSON. Of rows without texts (``raw: false``) the texts are None.
"""

from __future__ import annotations

import argparse
import csv
import json
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

from ragen.commands import CommandParser, command
from ragen.errors import ConfigError, InputError, MissingExtraError
from ragen.extras import needs

if TYPE_CHECKING:
    import pyarrow

PROG = "ragen frame"
PER = TRAJECTORY, TURN = ("trajectory", "turn")
LIBRARIES = PANDAS, POLARS = ("pandas", "polars")
FORMATS = PARQUET, CSV, JSONL = ("parquet", "csv", "jsonl")
Record = Mapping[str, Any]
Columns = dict[str, list[Any]]
_USED = ("prompt_tokens", "completion_tokens", "cost")
_ESCAPED = b"\\ud"  # how JSON writes half a surrogate pair, which no table takes
_SAID = ("action_is_valid", "action_is_effective")
_KINDS = ("cut_off", "filtered", "refused", "empty")


def frames(*runs: str | Path, per: str = TRAJECTORY, library: str = PANDAS) -> Any:
    """Runs as one data frame.

    For example::

        table = ragen.frames("outputs/evaluate/A", "outputs/evaluate/B")
        table.groupby(["model", "tag"]).success.mean()

    Args:
        runs: Folders of runs, or their ``rollouts.jsonl``; a run that is still going has what it has written so far.
        per: ``"trajectory"`` or ``"turn"``: what a row is. The module describes the columns.
        library: ``"pandas"`` or ``"polars"``: whose ``DataFrame`` is returned.

    Raises:
        InputError: ``per`` or ``library`` is something else, or there is no run.
        ConfigError: A run cannot be read.
        MissingExtraError: The library is not installed.
    """
    if library not in LIBRARIES:
        raise InputError(f"library = {library!r}; expected one of {', '.join(map(repr, LIBRARIES))}.")
    columns = columns_of(runs, per)
    with needs("frames", f"a data frame of {library}"):
        if library == PANDAS:
            import pandas

            return pandas.DataFrame(columns)
        import polars

        return polars.DataFrame(columns, strict=False)


def columns_of(runs: Sequence[str | Path], per: str = TRAJECTORY) -> Columns:
    """Runs as lists, by the name of their column; see :func:`frames`.

    Returns:
        Each value is None, a bool, a number, a text, or a list of texts or of mappings of texts.
    """
    from ragen.llm_agent.rollout.rollout_file import read_records, rows_of

    if per not in PER:
        raise InputError(f"per = {per!r}; expected one of {', '.join(map(repr, PER))}.")
    if not runs:
        raise InputError("there is no run to make a frame of; expected at least one folder.")
    rows: list[dict[str, Any]] = []
    make: Callable[[Record], Iterable[dict[str, Any]]] = _turns if per == TURN else _trajectory
    for run in map(Path, runs):
        path = rows_of(run)
        about = {"run": str(run), "model": _model(path)}
        made = [about | row for record in read_records(path) for row in make(record)]
        rows += map(_valid, made) if _ESCAPED in path.read_bytes() else made
    names = dict.fromkeys(name for row in rows for name in row)
    return {name: [row.get(name) for row in rows] for name in names}


def _model(rows: Path) -> str | None:
    """Which model a run asked, or else its backend; None where that is not known."""
    from ragen.llm_agent.report.contents import About

    facts = About.of_folder(rows).facts
    return facts.get("model") or facts.get("backend")


def _common(record: Record) -> dict[str, Any]:
    from ragen.llm_agent.evaluation.replies import outcome

    common = {name: record.get(name) for name in ("env_id", "group_id", "tag", "seed", "mode")}
    common |= {"outcome": outcome(record), "success": bool(record["success"])}
    return common | ({"parent": record["parent"]} if "parent" in record else {})


def _trajectory(record: Record) -> Iterator[dict[str, Any]]:
    from ragen.llm_agent.backends.prompt import text_of

    rewards, told = record.get("rewards", ()), record.get("replies", ())
    used = {name: sum(reply.get(name, 0) for reply in told) for name in _USED if any(name in each for each in told)}
    kinds = {kind: sum(bool(reply.get(kind)) for reply in told) for kind in _KINDS} if told else {}
    measured = {name.removeprefix(f"{record['tag']}/"): v for name, v in record.get("metrics", {}).items()}
    metrics = {f"metrics.{name}": _number(value) for name, value in measured.items() if name != "success"}
    yield _common(record) | {
        "reward": float(sum(rewards)),
        "penalty": _number(record.get("penalty", 0)),
        "turns": len(rewards),
        "actions": sum(map(len, record.get("actions", ()))),
        "invalid_replies": sum(_invalid(record)),
        "error": record.get("error"),
        "env_error": record.get("env_error"),
        **metrics,
        **used,
        **kinds,
        "messages": [{"role": each["role"], "content": text_of(each)} for each in record["messages"]]
        if "messages" in record
        else None,
    }


def _turns(record: Record) -> Iterator[dict[str, Any]]:
    from ragen.llm_agent.evaluation.scanners import states_shown
    from ragen.llm_agent.prompting.replies import thought_of
    from ragen.llm_agent.rollout.trajectories import line_of

    common, told, invalid = _common(record), record.get("replies", ()), _invalid(record)
    states, replies, infos = states_shown(record), record.get("raw_replies", ()), record.get("infos", ())
    chat = [each["content"] for each in record.get("messages", ()) if each["role"] == "assistant"]
    names = record.get("action_names") or {}
    for at, (actions, reward) in enumerate(zip(record["actions"], record["rewards"], strict=False)):
        info = infos[at] if at < len(infos) else None
        reply = told[at] if at < len(told) else {}
        said = info if isinstance(info, Mapping) else {}
        yield common | {
            "turn": at + 1,
            "state": states[at] if at < len(states) else None,
            "reply": replies[at] if at < len(replies) else None,
            "thought": thought_of(chat[at]) if at < len(chat) and isinstance(chat[at], str) else None,
            "actions": [
                names.get(str(each)) or (each if isinstance(each, str | None) else json.dumps(each)) for each in actions
            ],
            "reward": _number(reward),
            "invalid_reply": invalid[at],
            **{name: _flag(said.get(name)) if actions else False for name in _SAID},
            **{name: reply.get(name) for name in _USED if any(name in each for each in told)},
            **({kind: bool(reply.get(kind)) for kind in _KINDS} if told else {}),
            **({"finish_reason": reply.get("finish_reason")} if told else {}),
            "info": None if info is None else line_of(info).rstrip("\n"),
        }


def _invalid(record: Record) -> Sequence[bool]:
    """Whether each turn's reply was penalized; in rows of earlier versions, whether nothing was executed."""
    return record.get("invalid") or [not actions for actions in record.get("actions", ())]


def _number(value: Any) -> float | None:
    return float(value) if isinstance(value, int | float) else None


def _flag(value: Any) -> bool | None:
    return None if value is None else bool(value)


def _valid(value: Any) -> Any:
    """A value whose texts are valid Unicode, which tables have to be."""
    from ragen.llm_agent.backends.base import valid_text

    if isinstance(value, str):
        return valid_text(value)
    if isinstance(value, list):
        return [_valid(each) for each in value]
    return {name: _valid(each) for name, each in value.items()} if isinstance(value, dict) else value


# Files


def table_of(columns: Columns) -> pyarrow.Table:
    """Columns as an Arrow table.

    Raises:
        MissingExtraError: pyarrow is not installed.
    """
    with needs("frames", "Parquet"):
        import pyarrow

    return pyarrow.table(columns)


def write_table(columns: Columns, file: IO[bytes], kind: str) -> None:
    """Write columns to a file.

    Args:
        columns: What :func:`columns_of` returned.
        file: Open for bytes.
        kind: One of :data:`FORMATS`. CSV has lists as JSON; an empty field is None, or an empty text.

    Raises:
        MissingExtraError: Parquet needs pyarrow, which is not installed.
    """
    if kind == PARQUET:
        try:
            table = table_of(columns)
        except MissingExtraError as error:
            raise MissingExtraError(f"{error} CSV needs no package: --format csv.") from error
        from pyarrow import parquet

        parquet.write_table(table, file, compression="zstd")
        return
    import io

    text = io.TextIOWrapper(file, "utf-8", newline="", write_through=True)
    try:
        rows = zip(*columns.values(), strict=True)
        if kind == JSONL:
            for row in rows:
                text.write(json.dumps(dict(zip(columns, row, strict=True)), ensure_ascii=False) + "\n")
            return
        writer = csv.writer(text)
        writer.writerow(columns)
        for row in rows:
            writer.writerow([json.dumps(v, ensure_ascii=False) if isinstance(v, list) else v for v in row])
    finally:
        text.detach()


# The command


def parser(prog: str = PROG) -> argparse.ArgumentParser:
    """The command line, under this name."""
    top = CommandParser(
        prog=prog,
        description="Write runs as one table, a row per trajectory, for pandas, polars, DuckDB or a spreadsheet. In "
        "Python, ragen.frames(...) returns the same as a data frame.",
        examples=(f"{prog} outputs/evaluate/* > runs.parquet", f"{prog} RUN --turns -o turns.csv"),
    )
    top.add_argument("runs", nargs="+", type=Path, metavar="RUN", help="the output_dir of a run, or its rollouts.jsonl")
    top.add_argument("--turns", action="store_true", help="a row per turn")
    top.add_argument("--format", choices=FORMATS, help="default: by the ending of --output, or else parquet")
    top.add_argument("-o", "--output", type=Path, metavar="FILE", help="where to write (default: standard output)")
    return top


@command(parser, PROG)
def main(options: argparse.Namespace, prog: str) -> int:
    """Run the command.

    Returns:
        The exit code: 0, or 2 where there is nothing to write, or nowhere to write it.
    """
    from ragen.files import replacing
    from ragen.llm_agent.rollout.rollout_file import check_output

    check_output(options.output)
    ending = PARQUET if options.output is None else options.output.suffix.removeprefix(".")
    kind = options.format or ending
    if kind not in FORMATS:
        raise ConfigError(f"--output is {str(options.output)!r}; expected .{', .'.join(FORMATS)}, or --format.")
    if options.output is None and kind == PARQUET and sys.stdout.isatty():
        raise ConfigError(
            "Parquet is no text for a terminal: write to a file with > or --output, or take --format csv."
        )
    columns = columns_of(options.runs, TURN if options.turns else TRAJECTORY)
    if options.output is None:
        write_table(columns, sys.stdout.buffer, kind)
        return 0
    try:
        with replacing(options.output) as file:
            write_table(columns, file, kind)
    except OSError as error:
        raise ConfigError(f"{options.output} cannot be written: {error.strerror}; name another file.") from error
    count = len(columns.get("run", ()))
    print(f"{count:,} {'row' if count == 1 else 'rows'} in {options.output}")
    return 0
