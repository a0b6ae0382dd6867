"""Failure capsules: one small JSON file per failure, from which it can be played again.

An environment that raised, hung, took its worker down or did not replay leaves a capsule: what builds it, the journal
of its episode, what it was asked when it failed, and what is known of the failure. ``ragen replay CAPSULE`` plays it
again. A capsule holds plain data only: reading one runs no code of a user's.

Capsules are written whole or not at all, into a folder that the first one creates, and in a number that is bounded for
each process: a run in which everything fails leaves a handful of files. A failure to write is logged and harms nothing
else.
"""

from __future__ import annotations

import dataclasses
import itertools
import json
import logging
import os
import pkgutil
import platform
import re
import runpy
import sys
import time
import traceback
from collections import Counter, defaultdict
from collections.abc import Mapping
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from typing import Any

import ragen
from ragen.commands import typed
from ragen.errors import CapsuleError, DivergenceError, LaneDiedError, LaneTimeoutError, RagenError
from ragen.files import write_whole
from ragen.parallel.episode.journal import Change, EpisodeJournal, JournalTurn
from ragen.parallel.episode.spec import EnvSpec
from ragen.parallel.episode.turn import state_hash
from ragen.parallel.failures import Failure
from ragen.parallel.lanes.orders import Fork, Play, Reset
from ragen.tools.json_codec import encode, lost_in, plain, read

log = logging.getLogger(__name__)

FORMAT = 2
VERSION = getattr(ragen, "__version__", "put into a checkout")
MOST = 20  # capsules that one process writes into a folder
MOST_ALIKE = 3  # of them, with the same tag and kind of failure

_LONGEST_TEXT = 2000  # characters of an observation that is kept as it is
_KINDS = {LaneTimeoutError: "timeout", LaneDiedError: "crash", DivergenceError: "divergence"}
_numbers = itertools.count(1)
_written: dict[Path, Counter[tuple[str, str]]] = defaultdict(Counter)  # by folder: how many of each tag and kind


@dataclass(frozen=True)
class Capsule:
    """One failure and all that led to it; values that have no plain form are ``Lost`` once it was read.

    Attributes:
        kind: ``"exception"``, ``"timeout"``, ``"crash"`` or ``"divergence"``.
        what: The failure in words.
        phase: What was being done: ``"build"``, ``"reset"``, ``"play"``, ``"replay"``, ``"call"`` ...
        env_type: Registered name or path, as the configuration says.
        tag, env_id: Which environment of its engine it was.
        env_class: ``"package.module:Class"``.
        config_class: Of the environment's configuration, likewise; None if that is plain itself.
        config: What the configuration is made of: ``env_config``, or its fields.
        game: Class of the game.
        script: The main script, if that is where one of these classes was defined.
        journal: The episode; long observations are kept as their digests.
        failed: The turn or change that was being made; None for a reset.
        timeout: Seconds that it might have taken.
        story: Tracebacks, the environment's own first, and the stacks of a hung worker.
        versions: Of Python, the system, and packages.
        import_path: ``sys.path`` of the process, installed packages left out.
        written: When, in UTC.
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
    def of(cls, failure: Failure) -> Capsule:
        """The capsule of a failure."""
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
        """What was done in the episode, and what was being done when it failed."""
        return [*self.journal.entries, *([self.failed] if self.failed is not None else [])]

    def to_json(self) -> str:
        """The file's text, one field a line."""
        lines = [f" {json.dumps(name)}: {json.dumps(encode(value))}" for name, value in vars(self).items()]
        return ",\n".join([f'{{\n "format": {FORMAT}', *lines]) + "\n}\n"


def shown(value: Any) -> Any:
    """What a capsule keeps of what was recorded: of a long text its digest, of anything else its plain form."""
    if isinstance(value, str) and len(value) > _LONGEST_TEXT:
        return {"characters": len(value), "blake2b": state_hash(value)}
    return plain(value)


def path_of(named: Any) -> str:
    """Where a class or function is found, ``"package.module:Name"``; its ``repr`` if it has no name."""
    return f"{named.__module__}:{named.__qualname__}" if hasattr(named, "__qualname__") else repr(named)


def _kind(error: RagenError) -> str:
    return next((name for kind, name in _KINDS.items() if isinstance(error, kind)), "exception")


def _config_of(spec: EnvSpec) -> tuple[str | None, Any]:
    """The configuration's class, and what it is called with; None, and itself, if it is plain."""
    config = spec.config
    if config is not None and not isinstance(config, Mapping):
        if spec.env_config is not None:
            return path_of(type(config)), dict(spec.env_config)
        if dataclasses.is_dataclass(config):
            names = [each.name for each in dataclasses.fields(config) if each.init]
            return path_of(type(config)), {name: getattr(config, name) for name in names}
    return None, config


def _lived(failure: Failure) -> EpisodeJournal:
    """What it lived through before it failed; of a fork, what it was to live through."""
    return (failure.item[1].journal or failure.journal) if failure.asked is Fork else failure.journal


def _episode(failure: Failure) -> EpisodeJournal:
    journal = _lived(failure)
    if failure.asked is Reset:  # the journal is still that of the episode before
        return EpisodeJournal(failure.item.seed, failure.item.options, settings=journal.lasting())
    entries = [
        entry if isinstance(entry, Change) else JournalTurn(entry.action, tuple(map(shown, entry.recorded)))
        for entry in journal.entries
    ]
    return dataclasses.replace(journal, digest=shown(journal.digest), entries=entries)


def _failed(failure: Failure) -> JournalTurn | Change | None:
    if failure.asked in (Reset, Fork):
        return None
    return JournalTurn(failure.item[1], ()) if failure.asked is Play else failure.item[1]


def _script() -> str | None:
    file = getattr(sys.modules.get("__main__"), "__file__", None)
    return os.path.abspath(file) if file else None


def _import_path() -> tuple[str, ...]:
    """Folders that modules of the user's own may be in."""
    entries = dict.fromkeys(os.path.abspath(entry) for entry in sys.path)
    return tuple(e for e in entries if "-packages" not in e and not e.startswith((sys.base_prefix, sys.prefix)))


def versions() -> dict[str, str]:
    """Versions of what a replay may depend on."""
    return {
        "ragen": VERSION,
        "python": platform.python_version(),
        "numpy": metadata.version("numpy"),
        "platform": platform.platform(),
        "hash_seed": os.environ.get("PYTHONHASHSEED", "random"),
    }


def read_capsule(path: str | os.PathLike[str]) -> Capsule:
    """Read a capsule; no code of it is run and nothing it names is imported.

    Raises:
        CapsuleError: The file cannot be read, is no capsule, or was written by a version that this one does not know.
    """
    try:
        text = Path(path).read_text("utf-8")
        data = json.loads(text)
    except OSError as error:
        raise CapsuleError(f"cannot read {str(path)!r}: {error.strerror or error}.") from error
    except ValueError as error:
        raise CapsuleError(f"{str(path)!r} is no failure capsule, or a damaged one: {error}.") from error
    if not isinstance(data, dict) or "format" not in data:
        raise CapsuleError(f"{str(path)!r} is no failure capsule: it has no 'format'.")
    if data["format"] != FORMAT:
        by = data["versions"].get("ragen") if isinstance(data.get("versions"), dict) else None
        raise CapsuleError(
            f"{str(path)!r} has capsule format {data['format']!r} (ragen {by or 'unknown'}); this is ragen "
            f"{VERSION}, which reads format {FORMAT}. Replay it with the version that wrote it."
        )
    try:
        fields = read(text)
        del fields["format"]
        return Capsule(**fields)
    except (TypeError, KeyError, ValueError) as error:
        raise CapsuleError(f"{str(path)!r} is a damaged capsule: {error}.") from error


def load_spec(capsule: Capsule) -> EnvSpec:
    """What builds the capsule's environment; imports its module, or runs the main script that defined it.

    Raises:
        CapsuleError: A class, or a part of the configuration or of what was asked, is not here.
    """
    journal = capsule.journal
    asked = [entry.action if isinstance(entry, JournalTurn) else entry for entry in capsule.entries()]
    if lost := lost_in([capsule.config, *asked, journal.options, journal.settings]):
        told = "a part of the configuration or of what was asked could not be kept as plain data"
        raise CapsuleError(f"{told}: {'; '.join(lost)}.")
    sys.path += [entry for entry in capsule.import_path if entry not in sys.path and os.path.isdir(entry)]
    try:
        script = runpy.run_path(capsule.script, run_name="__mp_main__") if capsule.script is not None else {}
        env_class, game = _named(capsule.env_class, script), _named(capsule.game, script)
        config = capsule.config
        if capsule.config_class is not None:
            config = _named(capsule.config_class, script)(**config)
    except Exception as error:
        raise CapsuleError(
            f"cannot import {capsule.env_class!r}, or make its configuration: {type(error).__name__}: {error}. Its "
            "classes have to be as they were, outside of any function: in a module that is installed here or whose "
            f"folder is in PYTHONPATH, or in the main script{f' {capsule.script!r}' if capsule.script else ''}."
        ) from error
    return EnvSpec(capsule.env_id, 0, capsule.tag, capsule.env_type, env_class, config, game())


def _named(path: str, script: Mapping[str, Any]) -> Any:
    """What a path names, in a module or in the main script."""
    module, _, name = path.partition(":")
    return script[name] if module == "__main__" else pkgutil.resolve_name(path)


class CapsuleWriter:
    """Writes the capsules of one engine; all engines of the process together as many as are of use."""

    def __init__(self, folder: str | os.PathLike[str]) -> None:
        """Write into this folder, which the first capsule creates."""
        self._folder: Path | None = Path(folder).absolute()
        self._paths: dict[tuple[Any, ...], Path] = {}

    def note(self, failure: Failure) -> str:
        """Keep a capsule of this failure, and say in a sentence where it is; "" if there is none.

        The same failure of the same turn, met again by the second try, has one capsule. Never raises.
        """
        if self._folder is None:
            return ""
        try:
            path = self._keep(failure, self._folder)
        except Exception as error:
            log.warning("no failure capsule could be written into %s: %s", self._folder, error)
            self._folder = None
            return ""
        return f" [to play it again: {typed('replay')} {path}]" if path is not None else ""

    def _keep(self, failure: Failure, folder: Path) -> Path | None:
        spec, journal, kind, written = failure.spec, _lived(failure), _kind(failure.error), _written[folder]
        moment = failure.item.seed if failure.asked is Reset else (journal.seed, journal.turns)
        key = (spec.env_id, moment, kind)
        if key in self._paths:
            return self._paths[key]
        if written.total() >= MOST or written[spec.tag, kind] >= MOST_ALIKE:
            return None
        now, tag = time.strftime("%Y%m%d-%H%M%S", time.gmtime()), re.sub(r"[^\w.-]+", "_", spec.tag)[:60]
        path = folder / f"{now}-{tag}-env{spec.env_id}-{kind}-{os.getpid()}-{next(_numbers)}.json"
        write_whole(path, Capsule.of(failure).to_json())
        self._paths[key] = path
        written[spec.tag, kind] += 1
        return path
