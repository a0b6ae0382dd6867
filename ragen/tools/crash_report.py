"""Crash reports: the journal of a failed episode, from which ``ragen play --replay FILE`` plays it to the failure.

::

    {"journal": 1, "about": {"env_type": .., "config": .., "versions": ..}}
    {"turn": 0, "asked": [seed, options], "gave": digest}      the reset
    {"turn": 1, "asked": [actions, actions_left], "gave": ..}  a turn; "call" instead of "asked" for another method
    {"turn": 2, "asked": .., "failed": {"kind": .., "what": ..}}

The number of reports per process is limited: a run in which everything fails leaves a handful of files. A failure to
write is logged and has no other effect.
"""

from __future__ import annotations

import dataclasses
import itertools
import logging
import os
import platform
import re
import shlex
import time
import traceback
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping
from importlib import metadata
from pathlib import Path
from typing import Any

import ragen
from envlanes.episode.game import EpisodeStart
from envlanes.episode.journal import Change, EpisodeJournal, JournalTurn
from envlanes.episode.spec import EnvSpec
from envlanes.failures import Failure
from envlanes.ragen.journal import Event, JournalFile, NotPlain, packed
from envlanes.ragen.turn import RagenGame
from envlanes.workers.orders import Play, Reset
from ragen.errors import (
    DivergenceError,
    LaneDiedError,
    LaneTimeoutError,
    RagenError,
    counted,
    shown_path,
    steady_repr,
)

log = logging.getLogger(__name__)

MOST = 20  # crash reports that one process writes into a folder
MOST_ALIKE = 3  # of them, with the same tag and kind of failure

_KINDS = {LaneTimeoutError: "timeout", LaneDiedError: "crash", DivergenceError: "divergence"}
_numbers = itertools.count(1)
_written: dict[Path, Counter[tuple[str, str]]] = defaultdict(Counter)  # by folder: how many of each tag and kind
_omitted: Counter[Path] = Counter()  # by folder: failures beyond these limits


def count_reports(folder: str | os.PathLike[str]) -> str:
    """The number of this process's crash reports in a folder, and of its failures that have none, in words."""
    path = Path(folder).absolute()
    number, more = counted(_written[path].total(), "crash report"), _omitted[path]
    return f"{number} in {shown_path(path)}" + (f", and {more} more failures like these" if more else "")


def about_failure(failure: Failure) -> dict[str, Any]:
    """The environment of a report; see :mod:`ragen.tools.replay` for how far it is trusted."""
    spec = failure.spec
    return {
        "env_type": spec.env_type,
        "tag": spec.tag,
        "config": _plain(_config_of(spec)),
        "settings": _plain(failure.journal.lasting() if failure.kind is Reset else failure.journal.settings),
        "versions": versions(),
        "written": time.strftime("%Y-%m-%d %H:%M:%S UTC", time.gmtime()),
    }


def events_of(failure: Failure) -> list[Event]:
    """The episode, and the request that failed."""
    journal = failure.journal
    if failure.kind is Reset:  # the journal is still that of the previous episode
        journal = EpisodeJournal(EpisodeStart(*failure.item[1:]))
    start = journal.start or EpisodeStart(None, None)
    events = [{"turn": 0, "asked": _plain(start[:2]), "gave": _plain(start.digest)}]
    for entry in journal.entries:
        events.append(_event(events, entry))
    if failure.kind is not Reset and failure.item[1:]:
        asked = failure.item[1]
        events.append(_event(events, JournalTurn(asked, ()) if failure.kind is Play else asked))
    error = failure.error
    story = "".join(traceback.format_exception(error))
    failed = {"kind": kind_of(error), "what": failure.text, "phase": failure.phase, "story": story}
    events[-1] |= {"failed": failed | {"timeout": failure.timeout}}
    return events


def _event(before: Iterable[Event], entry: Any) -> Event:
    turn = max(event["turn"] for event in before)
    if isinstance(entry, Change):
        return {"turn": turn, "call": _plain((entry.name, entry.arguments, dict(entry.keywords), entry.is_set))}
    return {"turn": turn + 1, "asked": _plain(tuple(entry.action)), "gave": _plain(entry.recorded)}


def _plain(value: Any) -> Any:
    """A value as a journal has it; for one that has no exact form there, a mark that no replay accepts."""
    try:
        return packed(value)
    except (NotPlain, RecursionError):
        return {"lost": steady_repr(value, 300)}


def _config_of(spec: EnvSpec) -> Any:
    """The configuration's arguments, or the configuration itself if it is plain data."""
    config = spec.config
    if config is None or isinstance(config, Mapping):
        return config
    if spec.env_config is not None:
        return dict(spec.env_config)
    if dataclasses.is_dataclass(config):
        return {each.name: getattr(config, each.name) for each in dataclasses.fields(config) if each.init}
    return config


def kind_of(error: RagenError) -> str:
    """``"timeout"``, ``"crash"``, ``"divergence"`` or ``"exception"``."""
    return next((name for kind, name in _KINDS.items() if isinstance(error, kind)), "exception")


def versions() -> dict[str, str]:
    """The versions of packages and other facts that may affect a replay."""
    numpy, python = metadata.version("numpy"), platform.python_version()
    return {"ragen": ragen.__version__, "python": python, "numpy": numpy, "platform": platform.platform()}


class CrashReportWriter:
    """Writes the crash reports of one engine, up to a limit shared by all engines of the process."""

    def __init__(self, folder: str | os.PathLike[str]) -> None:
        """Write into this folder, which the first report creates."""
        self._folder: Path | None = Path(folder).absolute()
        self._paths: dict[tuple[Any, ...], Path | None] = {}

    def note(self, failure: Failure) -> str:
        """Write a report of this failure; returns a sentence with its path, or "" if none was written.

        A repeated failure of the same turn has one report. Never raises.
        """
        if self._folder is None or type(failure.spec.game) is not RagenGame:
            return ""
        try:
            path = self._keep(failure, self._folder)
        except Exception as error:
            log.warning("no crash report could be written to %s: %s", self._folder, error)
            self._folder = None
            return ""
        if path is None:
            return ""
        named = f"{failure.spec.env_type} " if ":" in failure.spec.env_type else ""
        return f" [to replay it: ragen play {named}--replay {shlex.quote(str(path))}]"

    def _keep(self, failure: Failure, folder: Path) -> Path | None:
        spec, journal, kind, written = failure.spec, failure.journal, kind_of(failure.error), _written[folder]
        moment = failure.item.seed if failure.kind is Reset else (journal.start and journal.start.seed, journal.turns)
        key = (spec.env_id, moment, kind)
        if key in self._paths:
            return self._paths[key]
        if written.total() >= MOST or written[spec.tag, kind] >= MOST_ALIKE:
            self._paths[key] = None
            _omitted[folder] += 1
            return None
        now, tag = time.strftime("%Y%m%d-%H%M%S", time.gmtime()), re.sub(r"[^\w.-]+", "_", spec.tag)[:60]
        path = folder / f"{now}-{tag}-env{spec.env_id}-{kind}-{os.getpid()}-{next(_numbers)}.jsonl"
        with JournalFile(path, about_failure(failure)) as file:
            file.write(events_of(failure))
        self._paths[key] = path
        written[spec.tag, kind] += 1
        return path
