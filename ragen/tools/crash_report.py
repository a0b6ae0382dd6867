"""Crash reports: one small JSON file per failure, from which it can be replayed.

An environment that raised, hung, crashed its worker or did not replay leaves a report: its specification, the journal
of its episode, the request during which it failed, and details of the failure. ``ragen replay FILE`` replays it.

A report is untrusted data. Reading one runs no code. Replaying it imports the module of its environment, and nothing
that only the report names: no folder is added to the import path, no script is run, and no class is called except the
environment, its configuration class, and a kind of game of this package. The user names scripts and folders on the
command line.

Reports are written atomically, into a folder that the first one creates, and their number per process is limited: a run
in which everything fails leaves a handful of files. A failure to write is logged and has no other effect.
"""

from __future__ import annotations

import dataclasses
import itertools
import json
import logging
import math
import os
import platform
import re
import runpy
import shlex
import sys
import time
import traceback
from collections import Counter, defaultdict
from collections.abc import Mapping
from dataclasses import dataclass
from importlib import import_module, metadata
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import ragen
from envlanes.episode.game import Game
from envlanes.episode.journal import Change, EpisodeJournal, JournalTurn
from envlanes.episode.spec import EnvSpec
from envlanes.episode.turn import state_hash
from envlanes.failures import Failure
from envlanes.lanes.orders import Fork, Play, Reset
from ragen.env.registry import REGISTERED_ENV_CONFIGS
from ragen.errors import CrashReportError, DivergenceError, LaneDiedError, LaneTimeoutError, RagenError, in_short
from ragen.files import write_whole
from ragen.tools.json_codec import encode, lost_in, plain, read

log = logging.getLogger(__name__)

FORMAT = 3
VERSION = getattr(ragen, "__version__", "put into a checkout")
MOST = 20  # crash reports that one process writes into a folder
MOST_ALIKE = 3  # of them, with the same tag and kind of failure

_LONGEST_TEXT = 2000  # characters up to which an observation is stored verbatim
_KINDS = {LaneTimeoutError: "timeout", LaneDiedError: "crash", DivergenceError: "divergence"}
_numbers = itertools.count(1)
_written: dict[Path, Counter[tuple[str, str]]] = defaultdict(Counter)  # by folder: how many of each tag and kind


@dataclass(frozen=True)
class CrashReport:
    """One failure and its episode; values that cannot be stored as plain data are ``Lost`` after reading.

    Attributes:
        kind: ``"exception"``, ``"timeout"``, ``"crash"`` or ``"divergence"``.
        what: The failure in words.
        phase: The operation: ``"build"``, ``"reset"``, ``"play"``, ``"replay"``, ``"call"`` ...
        env_type: Registered name or path, as in the configuration.
        tag, env_id: The environment's tag and id in its engine.
        env_class: ``"package.module:Class"``.
        config_class: The configuration's class, likewise; None if the configuration is plain data.
        config: The configuration's ``env_config``, or its fields.
        game: Class of the game.
        script: The main script, if that is where one of these classes was defined.
        journal: The episode; long observations are stored as digests.
        failed: The turn or change that failed; None for a reset.
        timeout: Its deadline in seconds.
        story: Tracebacks, the environment's own first, and the stacks of a hung worker.
        versions: Versions of Python, the system, and packages.
        import_path: ``sys.path`` of the process without installed packages.
        written: Time of writing, in UTC.
    """

    kind: str
    what: str
    phase: str
    env_type: str
    tag: str
    env_id: int
    env_class: str
    config_class: str | None
    config: Any
    game: str
    script: str | None
    journal: EpisodeJournal
    failed: JournalTurn | Change | None
    timeout: float
    story: str
    versions: Mapping[str, str]
    import_path: tuple[str, ...]
    written: str

    @classmethod
    def of(cls, failure: Failure) -> CrashReport:
        """The crash report of a failure."""
        spec, error = failure.spec, failure.error
        config_class, config = _config_of(spec)
        classes = [path_of(spec.env_class), config_class, path_of(type(spec.game))]
        return cls(
            kind=_kind(error),
            what=failure.text,
            phase=failure.phase,
            env_type=spec.env_type,
            tag=spec.tag,
            env_id=spec.env_id,
            env_class=path_of(spec.env_class),
            config_class=config_class,
            config=config,
            game=path_of(type(spec.game)),
            script=_script() if any(str(path).startswith("__main__:") for path in classes) else None,
            journal=_episode(failure),
            failed=_failed(failure),
            timeout=failure.timeout,
            story="".join(traceback.format_exception(error)),
            versions=versions(),
            import_path=_import_path(),
            written=time.strftime("%Y-%m-%d %H:%M:%S", time.gmtime()),
        )

    def entries(self) -> list[JournalTurn | Change]:
        """The episode's entries, and the one that failed."""
        return [*self.journal.entries, *([self.failed] if self.failed is not None else [])]

    def to_json(self) -> str:
        """The file's text, one field per line."""
        lines = [f" {json.dumps(name)}: {json.dumps(encode(value))}" for name, value in vars(self).items()]
        return ",\n".join([f'{{\n "format": {FORMAT}', *lines]) + "\n}\n"


def shown(value: Any) -> Any:
    """A recorded value for the report: a long text's digest, or a value's plain form."""
    if isinstance(value, str) and len(value) > _LONGEST_TEXT:
        return {"characters": len(value), "blake2b": state_hash(value)}
    return plain(value)


def path_of(named: Any) -> str:
    """The import path of a class or function, ``"package.module:Name"``; its ``repr`` if it has no name."""
    return f"{named.__module__}:{named.__qualname__}" if hasattr(named, "__qualname__") else repr(named)


def _kind(error: RagenError) -> str:
    return next((name for kind, name in _KINDS.items() if isinstance(error, kind)), "exception")


def _config_of(spec: EnvSpec) -> tuple[str | None, Any]:
    """The configuration's class and arguments; None and the configuration itself if it is plain data."""
    config = spec.config
    if config is not None and not isinstance(config, Mapping):
        if spec.env_config is not None:
            return path_of(type(config)), dict(spec.env_config)
        if dataclasses.is_dataclass(config):
            names = [each.name for each in dataclasses.fields(config) if each.init]
            return path_of(type(config)), {name: getattr(config, name) for name in names}
    return None, config


def _episode(failure: Failure) -> EpisodeJournal:
    journal = failure.journal
    if failure.asked is Reset:  # the journal is still that of the previous episode
        return EpisodeJournal(failure.item.seed, failure.item.options, settings=journal.lasting())
    entries = [
        entry if isinstance(entry, Change) else JournalTurn(entry.action, tuple(map(shown, entry.recorded)))
        for entry in journal.entries
    ]
    return dataclasses.replace(journal, digest=shown(journal.digest), entries=entries, snapshots=[])


def _failed(failure: Failure) -> JournalTurn | Change | None:
    if failure.asked in (Reset, Fork):
        return None
    return JournalTurn(failure.item[1], ()) if failure.asked is Play else failure.item[1]


def _script() -> str | None:
    file = getattr(sys.modules.get("__main__"), "__file__", None)
    return os.path.abspath(file) if file else None


def _import_path() -> tuple[str, ...]:
    """Folders that may contain the user's own modules."""
    entries = dict.fromkeys(os.path.abspath(entry) for entry in sys.path)
    installed = (sys.base_prefix, sys.prefix)
    return tuple(e for e in entries if os.path.isdir(e) and "-packages" not in e and not e.startswith(installed))


def found_by(spec: EnvSpec) -> str:
    """The command-line options with which another process finds an environment's class, if any are needed."""
    module = str(getattr(spec.env_class, "__module__", ""))
    if module == "__main__":
        script = _script()
        return f" --script {shlex.quote(script)}" if script else ""
    file = getattr(sys.modules.get(module.partition(".")[0]), "__file__", None)
    if file is None:
        return ""
    folder = os.path.dirname(os.path.abspath(file))
    folder = os.path.dirname(folder) if os.path.basename(file) == "__init__.py" else folder
    return f" --path {shlex.quote(folder)}" if folder in _import_path() else ""


def versions() -> dict[str, str]:
    """The versions of packages and other facts that may affect a replay."""
    return {
        "ragen": VERSION,
        "python": platform.python_version(),
        "numpy": metadata.version("numpy"),
        "platform": platform.platform(),
        "hash_seed": os.environ.get("PYTHONHASHSEED", "random"),
    }


def read_crash_report(path: str | os.PathLike[str]) -> CrashReport:
    """Read a crash report; nothing that it names is run or imported.

    Raises:
        CrashReportError: The file cannot be read, is not a crash report, or has an unknown version.
    """
    try:
        text = Path(path).read_text("utf-8")
        data = json.loads(text)
    except OSError as error:
        raise CrashReportError(f"cannot read {str(path)!r}: {error.strerror or error}.") from error
    except (ValueError, RecursionError) as error:
        raise CrashReportError(f"{str(path)!r} is not a crash report, or is damaged: {error}.") from error
    if not isinstance(data, dict) or "format" not in data:
        raise CrashReportError(f"{str(path)!r} is not a crash report: it has no 'format'.")
    if data["format"] != FORMAT:
        by = data["versions"].get("ragen") if isinstance(data.get("versions"), dict) else None
        raise CrashReportError(
            f"{str(path)!r} has crash report format {data['format']!r} (ragen {by or 'unknown'}); this is ragen "
            f"{VERSION}, which reads format {FORMAT}. Replay it with the version that wrote it."
        )
    try:
        fields = read(text)
        del fields["format"]
        return _checked(CrashReport(**fields))
    except (TypeError, KeyError, ValueError, RecursionError) as error:
        raise CrashReportError(f"{str(path)!r} is a damaged crash report: {error}.") from error


_KIND_OF: dict[str, tuple[type, ...]] = {
    **dict.fromkeys(("kind", "what", "phase", "env_type", "tag", "env_class", "game", "story", "written"), (str,)),
    **dict.fromkeys(("config_class", "script"), (str, type(None))),
    "env_id": (int,),
    "journal": (EpisodeJournal,),
    "failed": (JournalTurn, Change, type(None)),
    "timeout": (int, float),
    "versions": (dict,),
    "import_path": (tuple,),
}
_HASH_SEED = re.compile("random|[0-9]{1,9}")


def _checked(report: CrashReport) -> CrashReport:
    """The report with validated fields.

    Raises:
        ValueError: A field is invalid.
    """
    for name, kinds in _KIND_OF.items():
        if not isinstance(value := getattr(report, name), kinds) or isinstance(value, bool):
            raise ValueError(f"{name} is {in_short(value)}")
    journal = report.journal
    if not isinstance(journal.entries, list) or not isinstance(journal.settings, dict):
        raise ValueError("its journal has no list of entries, or no settings")
    if journal.snapshots:
        raise ValueError("its journal has snapshots, which are pickled and never loaded from a file")
    for entry in report.entries():
        if not isinstance(entry, JournalTurn | Change):
            raise ValueError(f"an entry of its journal is {in_short(entry)}")
        if isinstance(entry, JournalTurn) and not isinstance(entry.recorded, tuple):
            raise ValueError(f"a turn of its journal recorded {in_short(entry.recorded)}")
        if isinstance(entry, Change) and (not isinstance(entry.name, str) or "__" in entry.name):
            raise ValueError(f"a change in its journal is of {in_short(entry.name)}, which no engine records")
    if not 0 < report.timeout < math.inf:
        raise ValueError(f"timeout is {report.timeout!r}")
    if not _HASH_SEED.fullmatch(str(report.versions.get("hash_seed", "random"))):
        raise ValueError(f"versions.hash_seed is {in_short(report.versions['hash_seed'])}")
    return report


def about_to_run(report: CrashReport, script: str | None = None) -> str:
    """A description of what :func:`load_spec` will run; imports nothing.

    Raises:
        CrashReportError: It would need a script that the user has not named.
    """
    module, _, name = report.env_class.partition(":")
    if module != "__main__":
        return f"importing module {module!r} ({place_of(module)}) for its class {name!r}"
    if script is None:
        hint = f"; if you trust it: --script {shlex.quote(report.script)}" if report.script else ""
        raise CrashReportError(
            f"its environment {name!r} was defined in a program's main script, and a crash report runs no script. Name "
            f"the script yourself: --script FILE (the report says {report.script!r}{hint})."
        )
    return f"running the script {script!r} for its class {name!r}"


def place_of(module: str) -> str:
    """The file from which a module would be imported, if it can be found without importing anything."""
    try:
        found = find_spec(module.partition(".")[0])
    except (ImportError, ValueError):
        found = None
    if found is None:
        return "not found"
    return next(iter(found.submodule_search_locations or []), None) or found.origin or "built in"


def load_spec(report: CrashReport, script: str | None = None) -> EnvSpec:
    """The specification of the report's environment; imports its module, or runs the main script that defined it.

    Args:
        report: The crash report.
        script: The script that the user named for this; its ``if __name__ == "__main__":`` part is not run.

    Raises:
        CrashReportError: A class, or a part of the configuration or of the requests, is missing, or not allowed in a
            crash report.
    """
    about_to_run(report, script)
    journal = report.journal
    asked = [entry.action if isinstance(entry, JournalTurn) else entry for entry in report.entries()]
    if lost := lost_in([report.config, *asked, journal.options, journal.settings]):
        reason = "part of the configuration or of the requests could not be stored as plain data"
        raise CrashReportError(f"{reason}: {'; '.join(lost)}.")
    try:
        run = runpy.run_path(script, run_name="__mp_main__") if script is not None else {}
        env_class = _class_named(report.env_class, run)
        if not all(callable(getattr(env_class, method, None)) for method in ("reset", "step")):
            raise CrashReportError(f"{report.env_class!r} is not an environment: it has no reset and step.")
        config = report.config
        if report.config_class is not None:
            config = _config_class(report, env_class, run)(**config)
        game = _class_named(report.game, {})
    except CrashReportError:
        raise
    except Exception as error:
        folders = " ".join(f"--path {shlex.quote(folder)}" for folder in report.import_path)
        raise CrashReportError(
            f"cannot import {report.env_class!r}, or create its configuration: {type(error).__name__}: {error}. Its "
            "classes must be unchanged, outside of any function, in a module that is installed here or in a "
            f"folder that PYTHONPATH or --path names{f' (the report says: {folders})' if folders else ''}."
        ) from error
    if not (issubclass(game, Game) and game.__module__.startswith(("ragen.", "envlanes."))):
        raise CrashReportError(f"{report.game!r} is not a kind of game of this package.")
    return EnvSpec(report.env_id, 0, report.tag, report.env_type, env_class, config, game())


def _class_named(path: str, script: Mapping[str, Any]) -> type:
    """The class at a path, in the module or script that defines it; no other value."""
    module, _, name = path.partition(":")
    if not re.fullmatch(r"\w+(\.\w+)*:\w+(\.\w+)*", path):
        raise CrashReportError(f"{path!r} is not a 'package.module:Class'.")
    first, *inner = name.split(".")
    found: Any = script[first] if module == "__main__" else getattr(import_module(module), first)
    for each in inner:
        found = getattr(found, each)
    own = "__mp_main__" if module == "__main__" else module
    if not isinstance(found, type) or (found.__module__, found.__qualname__) != (own, name):
        raise CrashReportError(f"{path!r} is not a class of that module.")
    return found


def _config_class(report: CrashReport, env_class: type, script: Mapping[str, Any]) -> type:
    """The configuration's class: one that the environment declares, or a dataclass of the same module."""
    declared = [getattr(env_class, "config_class", None)]
    if report.env_type in REGISTERED_ENV_CONFIGS:
        declared.append(REGISTERED_ENV_CONFIGS[report.env_type])
    for each in declared:
        if isinstance(each, type) and path_of(each).replace("__mp_main__:", "__main__:") == report.config_class:
            return each
    path = str(report.config_class)
    if path.partition(":")[0] == report.env_class.partition(":")[0]:
        found = _class_named(path, script)
        if dataclasses.is_dataclass(found):
            return found
    raise CrashReportError(
        f"{path!r} is not called: it is neither the config_class of {report.env_class!r} nor a dataclass of its module."
    )


class CrashReportWriter:
    """Writes the crash reports of one engine, up to a limit shared by all engines of the process."""

    def __init__(self, folder: str | os.PathLike[str]) -> None:
        """Write into this folder, which the first report creates."""
        self._folder: Path | None = Path(folder).absolute()
        self._paths: dict[tuple[Any, ...], Path] = {}

    def note(self, failure: Failure) -> str:
        """Write a report of this failure; returns a sentence with its path, or "" if none was written.

        A repeated failure of the same turn has one report. Never raises.
        """
        if self._folder is None:
            return ""
        try:
            path = self._keep(failure, self._folder)
        except Exception as error:
            log.warning("no crash report could be written to %s: %s", self._folder, error)
            self._folder = None
            return ""
        return f" [to replay it: ragen replay {shlex.quote(str(path))}{found_by(failure.spec)}]" if path else ""

    def _keep(self, failure: Failure, folder: Path) -> Path | None:
        spec, journal, kind, written = failure.spec, failure.journal, _kind(failure.error), _written[folder]
        moment = failure.item.seed if failure.asked is Reset else (journal.seed, journal.turns)
        key = (spec.env_id, moment, kind)
        if key in self._paths:
            return self._paths[key]
        if written.total() >= MOST or written[spec.tag, kind] >= MOST_ALIKE:
            return None
        now, tag = time.strftime("%Y%m%d-%H%M%S", time.gmtime()), re.sub(r"[^\w.-]+", "_", spec.tag)[:60]
        path = folder / f"{now}-{tag}-env{spec.env_id}-{kind}-{os.getpid()}-{next(_numbers)}.json"
        write_whole(path, CrashReport.of(failure).to_json())
        self._paths[key] = path
        written[spec.tag, kind] += 1
        return path
