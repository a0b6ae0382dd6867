"""``ragen replay FILE [--pdb] [--turn N] [--timeout SECONDS]``: play a failure again.

A crash report is data: it is shown, with what is about to be imported, before anything is. Environments are imported
from what is installed and from folders named by ``--path``, and their configurations name
files only there; a script is run only if ``--script`` names it. An environment may do anything with its configuration
and actions: inspect a stranger's report with ``--dry-run`` first.

Every turn is shown: the request, the result, and whether it equals the recorded one. The environment lives in a worker
of its own, so that a hang or a crash of its process is reported like any failure.
With ``--pdb`` it lives in this process: an exception opens the debugger where it was raised, and a turn that hung or
crashed begins in the debugger (``c`` continues, and Ctrl-C then shows where it hangs).

Exit codes:
    0  it did not happen again: everything went as recorded (or --dry-run)
    1  it happened again
    2  the report cannot be replayed here (unreadable, of another version, a module is missing), or wrong arguments
    3  something else happened: another failure, other results than recorded, or the debugger was left
"""

from __future__ import annotations

import argparse
import os
import pdb
import shlex
import sys
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from itertools import chain
from pathlib import Path
from typing import Any

from envlanes.episode.host import EnvHost
from envlanes.episode.journal import Change, JournalTurn, difference
from envlanes.episode.outcome import LOADING, Outcome, Raised
from envlanes.episode.spec import EnvSpec
from envlanes.interrupts import let_signals_pass
from envlanes.lanes.orders import Call, Order, Play, Rebuild
from ragen.commands import CommandParser, refusing
from ragen.errors import CrashReportError
from ragen.output import printable
from ragen.tools.crash_report import CrashReport, about_to_run, load_spec, place_of, read_crash_report, shown, versions
from ragen.tools.sandbox import Mishap, Sandbox

AS_RECORDED, AGAIN, DIFFERENT = 0, 1, 3
RESET = -1  # where a reset stands among the turns

Verdict = tuple[int, str]  # the exit code, and what a replay came to in words


class Replay:
    """The replay of a crash report."""

    def __init__(self, report: CrashReport, spec: EnvSpec, stage: Sandbox | DebuggedStage) -> None:
        self._report, self._game, self._stage = report, spec.game, stage
        self._differences = ""

    def run(self, last: int | None = None) -> Verdict:
        """Play the episode up to this turn, -1 for the reset alone, or all of it."""
        entry, turn = None, RESET
        try:
            self._begin()
            for entry in self._report.entries():
                turn += isinstance(entry, JournalTurn)
                if last is not None and turn > last:
                    break
                if isinstance(entry, JournalTurn):
                    self._play(turn, entry)
                else:
                    self._change(entry)
        except Mishap as mishap:
            return self._judge(entry, mishap)
        return self._conclude()

    def _begin(self) -> None:
        report, journal = self._report, self._report.journal
        is_reset = journal.has_begun or report.failed is None  # else it failed before its first reset
        beginning = replace(journal, digest=None, entries=[], has_begun=is_reset)
        found = self._stage.ask(Rebuild([], [(report.env_id, beginning)]), "at the reset")
        if not is_reset:
            return
        is_seeded = journal.before is None
        given = _described({"seed": journal.seed, **(journal.options or {})})
        print(f"\nreset  {given if is_seeded else 'without a seed, with the state that the generators had'}")
        self._show(found.got)  # as it was to find no digest, it has what it found
        if journal.has_begun:
            self._compare(RESET, ("digest",), (journal.digest,), (found.got,))

    def _play(self, turn: int, entry: JournalTurn) -> None:
        print(f"\nturn {turn + 1}  {_described(entry.action)}")
        result = self._stage.ask(Play([(self._report.env_id, entry.action)]), f"at turn {turn + 1}")
        fields = {name: value for name, value in result._asdict().items() if name not in ("observation", "digest")}
        self._show(self._game.digest(result.observation))
        print(f"  {_described(fields)}")
        if entry is self._report.failed:
            print("  This is the turn that failed; this time it did not.")
        else:
            self._compare(turn, self._game.recorded, entry.recorded, self._game.record(result))

    def _change(self, change: Change) -> None:
        given = [*map(repr, change.arguments), *(f"{name}={value!r}" for name, value in change.keywords.items())]
        print(f"\n{'set' if change.is_set else 'call'}  {change.name}({', '.join(given)})")
        try:
            value = self._stage.ask(Call([(self._report.env_id, change)]), f"at the call of {change.name!r}")
            print(f"  gave {value!r}")
        except Mishap as mishap:
            if change is self._report.failed or mishap.kind != "exception":
                raise
            print(f"  raised {mishap.text}")  # as it may have done before: that ends no episode

    def _compare(self, turn: int, names: Sequence[str], recorded: Sequence[Any], got: Sequence[Any]) -> None:
        for name, was, is_now in zip(names, recorded, got, strict=True):
            if found := difference(turn, (name,), (was,), (shown(is_now),)):
                self._differences += f"\n  {found.describe()}"
                print(f"  DIFFERS: {found.describe()}")

    def _show(self, digest: Any) -> None:
        """An observation as text."""
        lines = digest.splitlines() if isinstance(digest, str) else [f"digest {digest!r}"]
        print("\n".join(f"    {line}" for line in lines))

    def _judge(self, entry: JournalTurn | Change | None, mishap: Mishap) -> Verdict:
        """Compare a failure at this entry (None for the reset) with the recorded one."""
        report, story = self._report, f"{mishap.where}: {mishap.text}"
        print(f"\n{mishap.kind} {story}\n{mishap.story}", flush=True)
        if mishap.kind == "quit":
            return DIFFERENT, "The debugger was closed."
        is_there = entry is report.failed or report.phase in ("replay", "build")
        is_alike = mishap.kind != "exception" or report.what.partition(":")[0] == mishap.text.partition(":")[0]
        if is_there and is_alike and report.kind == mishap.kind:
            return AGAIN, f"It happened again, {story}.{self._differences}"
        recorded = printable(
            f"{report.kind}: {report.what} (while: {report.phase}, after {report.journal.turns} turns)"
        )
        return DIFFERENT, (
            f"A different failure happened {mishap.where}: {mishap.kind}: {mishap.text}. Recorded was "
            f"{recorded}.{self._differences}"
        )

    def _conclude(self) -> Verdict:
        if self._report.phase == LOADING and not self._differences:
            return AS_RECORDED, (
                "Replayed from its seed, everything went as recorded. The failure was in load() of a snapshot, which a "
                f"crash report does not contain: ragen check {self._report.env_type} compares snapshots."
            )
        if self._report.kind == "divergence":
            if self._differences:
                return AGAIN, f"It does not replay:{self._differences}"
            return AS_RECORDED, "This time it replayed as recorded. Try again, or with another PYTHONHASHSEED."
        if self._differences:
            return DIFFERENT, f"It did not fail, and the episode was different:{self._differences}"
        return AS_RECORDED, "It did not happen again: everything went as recorded."


def _described(value: Any) -> str:
    fields = value._asdict() if hasattr(value, "_asdict") else value
    if not isinstance(fields, Mapping):
        return repr(value)
    return ", ".join(f"{name} {item!r}" for name, item in fields.items())


# Under the debugger


class DebuggedStage:
    """The environment in this process, with a debugger for failures; an interface like :class:`Sandbox`."""

    def __init__(self, spec: EnvSpec, stop_at: int | None) -> None:
        """Enter the debugger in this turn (-1: the reset); None: only on exceptions."""
        self._host = _OpenHost()
        self._host.load([spec])
        self._env_class, self._stop_at, self._turn = spec.env_class, stop_at, RESET

    def ask(self, order: Order, where: str) -> Any:
        """The environment's result; see :meth:`Sandbox.ask`."""
        self._turn += isinstance(order, Play)
        carry_out: Callable[..., Any] = partial(order.run, self._host)
        if self._turn == self._stop_at and not isinstance(order, Call):
            method = "step" if isinstance(order, Play) else "reset"
            carry_out = partial(_stopping_in(getattr(self._env_class, method, None)).runcall, carry_out)
        try:
            outcomes = carry_out()
        except BaseException as error:
            let_signals_pass(error)
            traceback.print_exc()
            pdb.post_mortem(error.__traceback__)
            raise Mishap.of_raised(Raised.of(error, order.phase), where) from None
        if outcomes is None:  # which is what runcall gives then
            raise Mishap("quit", "left by the user", where=where)
        return outcomes[0].value


class _OpenHost(EnvHost):
    """A host that lets exceptions through."""

    def _each(self, items: Sequence[Any], phase: str, work: Callable[[Any, Any], Any], first: int = 0) -> list[Outcome]:
        return [Outcome(item[0], work(self._replicas[item[0]], item)) for item in items]


def _stopping_in(function: Any) -> pdb.Pdb:
    """A debugger that stops when this function is entered."""
    debugger = pdb.Pdb()
    code = getattr(function, "__code__", None)
    if code is not None:  # else it is no Python function, and the debugger starts before the turn
        debugger.set_break(code.co_filename, code.co_firstlineno, True, None, code.co_name)
        debugger.rcLines = ["continue"]
    return debugger


# The command


def parser(prog: str = "python -m ragen.tools.replay") -> argparse.ArgumentParser:
    """The argument parser."""
    top = CommandParser(
        prog=prog,
        description="Replay a failed environment from its crash report. Exit codes: 0 it did not happen again (or "
        "--dry-run), 1 it happened again, 2 the report cannot be replayed here, or the arguments are wrong, 3 "
        "something else happened: another failure, other results than recorded, or the debugger was left.",
        examples=(f"{prog} outputs/crash_reports/FILE.json --pdb",),
    )
    top.add_argument("report", type=Path, help="the file named in the failure's log line")
    top.add_argument("--pdb", action="store_true", help="replay in this process, and open the debugger at the failure")
    top.add_argument(
        "--turn",
        type=int,
        metavar="N",
        help="play no further than turn N, counted from 1 (0: the reset alone); with --pdb, stop before it",
    )
    top.add_argument(
        "--path",
        action="append",
        default=[],
        metavar="FOLDER",
        help="import modules from this folder too, and let the configuration name files in it",
    )
    top.add_argument("--script", metavar="FILE", help="the script that defines the environment, which is run")
    top.add_argument("--dry-run", action="store_true", help="show the report and what would be imported, then exit")
    top.add_argument("--timeout", type=float, metavar="SECONDS", help="time limit of a turn (default: as recorded)")
    return top


@refusing
def main(arguments: list[str] | None = None, prog: str = "python -m ragen.tools.replay") -> int:
    """Run the command; returns one of the exit codes above."""
    options = parser(prog).parse_args(arguments)
    report = read_crash_report(options.report)
    sys.path += [entry for entry in map(os.path.abspath, options.path) if entry not in sys.path]
    _introduce(report)
    print(f"{about_to_run(report, options.script)}; its configuration: {report.config!r}", flush=True)
    if options.dry_run:
        return AS_RECORDED
    _check_paths(report, list(map(os.path.realpath, options.path)))
    code, text = _replay(report, load_spec(report, options.script), options)
    print(f"\n{text}")
    return code


def _check_paths(report: CrashReport, named: Sequence[str]) -> None:
    """Refuse a module of the current folder, and files that the configuration names, outside of these folders.

    Raises:
        CrashReportError: There is such a module or file, which would be run.
    """
    module, here = report.env_class.partition(":")[0], os.path.realpath(".")
    folder = os.path.dirname(place_of(module))  # "" of a module that is built in, or not found
    if folder and os.path.realpath(folder) == here and here not in named and module.partition(".")[0] != "ragen":
        raise CrashReportError(
            f"its module {module!r} is in the current folder, and would be run. If you trust what is there: --path "
            f"{shlex.quote(here)}."
        )
    for text in _texts((report.config, report.journal.options, report.journal.settings)):
        path = os.path.realpath(os.path.expanduser(text.replace("\0", "").removeprefix("file://")))
        if text and os.path.exists(path) and not any(Path(path).is_relative_to(each) for each in named):
            folder = path if os.path.isdir(path) else os.path.dirname(path)
            raise CrashReportError(
                f"its configuration names {text!r}, which its environment may run. If you trust what is there: "
                f"--path {shlex.quote(folder)}."
            )


def _texts(value: Any) -> Iterator[str]:
    if isinstance(value, str | os.PathLike):
        yield os.fspath(value)
    elif isinstance(value, Mapping):
        yield from _texts([*value, *value.values()])
    elif isinstance(value, list | tuple | set | frozenset):
        yield from chain.from_iterable(map(_texts, value))


def _introduce(report: CrashReport) -> None:
    print(
        f"env {report.env_id} (tag {report.tag!r}, type {report.env_type!r}), written {printable(report.written)}\n"
        f"{printable(f'{report.kind} while: {report.phase}')}, after {report.journal.turns} turns: "
        f"{printable(report.what)}"
    )
    now = versions()
    for name, then in report.versions.items():
        if name != "hash_seed" and then != now.get(name):
            print(printable(f"recorded with {name} {then}, now {now.get(name)}"))


def _replay(report: CrashReport, spec: EnvSpec, options: argparse.Namespace) -> Verdict:
    last = None if options.turn is None else max(RESET, options.turn - 1)
    if options.pdb:
        stop_at = last if last is not None else _failing_turn(report)
        return Replay(report, spec, DebuggedStage(spec, stop_at)).run()
    environ = {"PYTHONHASHSEED": report.versions.get("hash_seed", "random")}
    with Sandbox(options.timeout or report.timeout, environ) as sandbox:
        try:
            sandbox.load([spec])
        except Mishap as mishap:
            raise CrashReportError(f"it cannot be loaded in a worker: {mishap.text}. Try --pdb.") from mishap
        return Replay(report, spec, sandbox).run(last)


def _failing_turn(report: CrashReport) -> int | None:
    """The turn at which to enter the debugger; None for exceptions, which open it, and for divergences."""
    if report.kind in ("exception", "divergence"):
        return None
    return report.journal.turns if report.failed is not None else RESET


if __name__ == "__main__":
    sys.exit(main())
