"""A file of what was asked and answered, from which a later process goes on after everything was killed.

::

    {"journal": 1, "about": {"mode": "train", ...}}                    what is played, by the file's first writer
    {"env": 3, "turn": 0, "asked": [7, {"mode": "train"}], "gave": ..}   an episode begins; it replaces env 3's last one
    {"env": 3, "turn": 1, "asked": .., "gave": ..}                     a turn; it replaces env 3's turns from 1 on
    {"reply": "5f0c..", "position": 0, "gave": {"text": .., ..}}       a model's reply, written before it is played

Lines are JSON and are only appended. A line is the operating system's when :meth:`JournalFile.write` returns, so that a
killed process loses none, and is on the disk within :data:`SYNC_S` seconds of further writing, which a machine that
stops may lose. A line that was cut short is dropped, with whatever follows it. Values are those of :func:`packed`:
reading a journal runs nobody's code. One process writes to it at a time.
"""

from __future__ import annotations

import base64
import fcntl
import json
import os
import threading
from collections.abc import Iterable, Mapping
from pathlib import Path
from time import monotonic
from typing import Any

from envlanes.closing import Closing
from envlanes.errors import ConfigError, StorageError, in_short, shown_path, steady_repr

VERSION = 1
SYNC_S = 1.0  # a sync takes a disk some milliseconds: once a second, that is less than a hundredth of a run
_PRIVATE, _PRIVATE_FOLDER = 0o600, 0o700  # turns and replies may hold anything

Event = dict[str, Any]


class NotPlain(ValueError):
    """A value has no exact form in a journal."""


class JournalFile(Closing):
    """A journal that this process reads once, and then appends to; may be used by several threads.

    Attributes:
        path: The file.
        events: Events of earlier processes, in order. A caller that takes them may clear the list.
    """

    def __init__(self, path: str | os.PathLike[str], about: Mapping[str, Any] | None = None) -> None:
        """Lock the file and read it; a new one is begun, with its folder.

        Args:
            path: The file.
            about: A description of the run, as keys and plain values; an existing file must say the same.

        Raises:
            ConfigError: Another process writes to it, it is about something else, or it cannot be opened.
            StorageError: It cannot be written to.
        """
        self.path = Path(path)
        about = json.loads(json.dumps(dict(about or {}), default=steady_repr))
        self._header = _line({"journal": VERSION, "about": about})
        self._lock = threading.Lock()
        self._synced = monotonic()
        try:
            self.path.parent.mkdir(_PRIVATE_FOLDER, parents=True, exist_ok=True)
            self._file: int | None = _locked(self.path)
        except BlockingIOError:
            raise ConfigError(
                f"another process writes to the journal {shown_path(self.path)}; wait for it, or name another file."
            ) from None
        except OSError as error:
            raise ConfigError(f"the journal {shown_path(self.path)} cannot be opened: {error.strerror}.") from error
        try:
            raw = self.path.read_bytes()
            events, end = _events(raw)
            if not events and raw.strip(b"\0\n") and (b"\n" in raw or not raw.startswith(b'{"journal"')):
                raise ConfigError(f"{shown_path(path)} is not a journal; name another file.")  # nor a torn first line
            before = _about(events[0], path) if events else about
            for key in sorted({*before, *about}):
                if before.get(key) != about.get(key):
                    was, now = in_short(before.get(key)), in_short(about.get(key))
                    raise ConfigError(
                        f"the journal {shown_path(path)} is of another configuration: {key} was {was} and is {now} "
                        "now; name another file, or remove it."
                    )
            # A process that was killed as it wrote has left half a line, which the next event would be appended to.
            os.ftruncate(self._file, end)
            self.write(())
            self.events = events[1:]
        except BaseException:
            self.close()
            raise

    def write(self, events: Iterable[Event], durable: bool = False, *, anew: bool = False) -> None:
        """Append events, all or none of them.

        Args:
            events: Their values are plain, or were :func:`packed`.
            durable: Whether to wait until they are on the disk.
            anew: Whether all earlier events are dropped first.

        Raises:
            StorageError: They cannot be written; what was not dropped is kept.
        """
        data = b"".join(map(_line, events))
        with self._lock:
            if (file := self._file) is None:
                raise StorageError(f"the journal {shown_path(self.path)} is closed.")
            try:
                if anew:
                    os.ftruncate(file, 0)
                size = os.fstat(file).st_size
                left = memoryview(data if size else self._header + data)
                try:
                    while left:
                        left = left[os.write(file, left) :]
                except OSError:
                    os.ftruncate(file, size)  # half a line would end the file for its readers
                    raise
                if durable or monotonic() - self._synced > SYNC_S:
                    os.fdatasync(file)
                    self._synced = monotonic()
            except OSError as error:
                raise StorageError(
                    f"the journal {shown_path(self.path)} cannot be written: {error.strerror}. What it has is kept; "
                    "make room, and run the same command again."
                ) from error

    def replace(self, events: Iterable[Event]) -> None:
        """Replace all events: a process that is killed leaves the old ones, none, or the new ones.

        Raises:
            StorageError: The new ones cannot be written.
        """
        self.write(events, anew=True)

    def close(self) -> None:
        """Sync and unlock the file."""
        with self._lock:
            if self._file is not None:
                file, self._file = self._file, None
                try:
                    os.fdatasync(file)
                finally:
                    os.close(file)

    def remove(self) -> None:
        """Delete the file, before another process can lock it, and close it."""
        if self._file is not None:
            self.path.unlink(missing_ok=True)
        self.close()

    def __del__(self) -> None:
        """Unlock the file of a holder that was forgotten."""
        if getattr(self, "_file", None) is not None:
            self.close()


def read_journal(path: str | os.PathLike[str]) -> tuple[dict[str, Any], list[Event]]:
    """Read a journal, which may be anybody's, without changing it; returns its header's ``about`` and its events.

    Raises:
        ConfigError: It cannot be read, or is no journal of this version.
    """
    try:
        events, _ = _events(Path(path).read_bytes())
    except OSError as error:
        raise ConfigError(f"the journal {shown_path(path)} cannot be read: {error.strerror}.") from error
    return _about(events[0] if events else {}, path), events[1:]


def _events(raw: bytes) -> tuple[list[Event], int]:
    """The events up to the first line that cannot be read, and the number of bytes that they take."""
    events, end = list[Event](), 0
    for line in raw.splitlines(keepends=True):
        try:
            event = json.loads(line, object_hook=_unpacked)
        except (ValueError, TypeError, LookupError, RecursionError):
            break
        if not isinstance(event, dict) or not line.endswith(b"\n"):
            break
        events.append(event)
        end += len(line)
    return events, end


def _about(header: Event, path: str | os.PathLike[str]) -> dict[str, Any]:
    about = header.get("about")
    if header.get("journal") != VERSION or not isinstance(about, dict):
        raise ConfigError(f"{shown_path(path)} is not a journal of version {VERSION}; name another file, or remove it.")
    return about


def _locked(path: Path) -> int:
    """The descriptor of a file that is locked until it is closed.

    Raises:
        BlockingIOError: Another process, or another part of this one, holds it.
    """
    while True:
        file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, _PRIVATE)
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BaseException:
            os.close(file)
            raise
        if os.fstat(file).st_nlink:
            return file
        os.close(file)  # its holder has removed it in between


def _line(event: Event) -> bytes:
    return json.dumps(event, separators=(",", ":")).encode() + b"\n"


# Values

_PLAIN = frozenset({str, int, float, bool, type(None)})
_KINDS: dict[str, Any] = {"$tuple": tuple, "$set": set, "$frozenset": frozenset, "$dict": dict}


def packed(value: Any) -> Any:
    """A value as JSON has it, from which reading a journal makes an equal one of the same types.

    Numbers, texts, None, bytes, lists, tuples, dicts, sets, and numpy's numbers and arrays of numbers.

    Raises:
        NotPlain: It is, or holds, something else.
    """
    kind = type(value)
    if kind in _PLAIN:
        return value
    if kind is list:
        return [packed(each) for each in value]
    if kind is dict:
        if all(type(key) is str and key[:1] != "$" for key in value):
            return {key: packed(each) for key, each in value.items()}
        return {"$dict": [[packed(key), packed(each)] for key, each in value.items()]}
    if (name := f"${kind.__name__}") in _KINDS and kind is _KINDS[name]:
        parts = [packed(each) for each in value]  # of a set, in an order that depends on hashes and on its history
        return {name: sorted(parts, key=repr) if isinstance(value, set | frozenset) else parts}
    if kind is bytes:
        return {"$bytes": base64.b64encode(value).decode()}
    if kind.__module__ == "numpy" and getattr(value, "dtype", None) is not None and value.dtype.kind in "biufc":
        return {
            "$array": [value.dtype.str, list(value.shape), base64.b64encode(value.tobytes()).decode()],
            "is_number": kind.__name__ != "ndarray",
        }
    raise NotPlain(f"{in_short(value)} has no exact form in a journal")


def _unpacked(data: dict[str, Any]) -> Any:
    """The value of a dict whose values are unpacked."""
    form = next(iter(data), "")
    if not form.startswith("$"):
        return data
    content = data[form]
    if form == "$bytes":
        return base64.b64decode(content)
    if form == "$array":
        import numpy as np  # late: most journals hold texts

        dtype, shape, raw = content
        if np.dtype(dtype).kind not in "biufc":
            raise ValueError(f"{dtype} is no number")
        array = np.frombuffer(bytearray(base64.b64decode(raw)), dtype).reshape(shape)
        return array[()] if data["is_number"] else array
    if form not in _KINDS:
        raise ValueError(f"the unknown form {form!r}")
    return _KINDS[form](content)
