"""Open episodes on disk: ``FOLDER/SESSION.jsonl`` has a line of JSON for the reset, and one for each turn.

A line is on the disk before its call is answered, so a killed server or a lost machine loses no answered turn. A line
that was cut short by a crash was never answered, and is dropped. A reset replaces the file.

A session's file is named after the hash of its token; the token itself is not stored. The server that holds a session
keeps its file locked, so that two servers that see the same folder (such as a server and its successor on another
machine) do not play the same session. The files are their owner's alone: turns may hold anything.
"""

from __future__ import annotations

import fcntl
import json
import os
from contextlib import suppress
from hashlib import sha256
from pathlib import Path
from typing import Any

from ragen.errors import SessionLostError, StorageError
from ragen.files import json_text, part_of

VERSION = 2
PRIVATE, PRIVATE_FOLDER = 0o600, 0o700  # modes
_FLAGS = os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC


class Journal:
    """The file of one session; its methods block.

    Attributes:
        path: The file.
    """

    def __init__(self, folder: Path, token: str) -> None:
        """Name the file of a session's token; :meth:`load` opens it."""
        self.path = folder / f"{sha256(token.encode()).hexdigest()[:40]}.jsonl"
        self._file: int | None = None

    def load(self) -> list[dict[str, Any]]:
        """Lock the session, and read the lines of its episode; empty if there is none.

        Raises:
            SessionLostError: Another server holds the session, or the file is damaged.
        """
        try:
            self._file = _locked(self.path)
            part_of(self.path).unlink(missing_ok=True)  # of a server that was killed during a reset
            with open(self._file, "rb", closefd=False) as file:
                raw = file.read()
            whole = raw[: raw.rfind(b"\n") + 1]
            os.ftruncate(self._file, len(whole))
            lines = [json.loads(line) for line in whole.splitlines()]
            order = [lines[0]["version"], *(line["turn"] for line in lines[1:])] if lines else []
            if order != [VERSION, *range(len(lines) - 1)][: len(lines)]:
                raise ValueError("its lines do not follow one another")
        except BlockingIOError:
            raise SessionLostError("another server that sees the same journals has this session.") from None
        except (OSError, ValueError, LookupError, TypeError) as error:
            self.close()
            raise SessionLostError(
                f"the journal {self.path.name} cannot be read ({error}); remove it to begin anew."
            ) from error
        return lines

    def begin(self, line: dict[str, Any]) -> None:
        """Replace the file by the first line of a new episode.

        Raises:
            StorageError: It cannot be written; the previous episode is still there.
        """
        part = part_of(self.path)
        try:
            file = os.open(part, _FLAGS | os.O_TRUNC, PRIVATE)
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)  # before others can see it under its name
                _write(file, {"version": VERSION, **line})
                os.replace(part, self.path)
            except OSError:
                os.close(file)
                raise
            if self._file is not None:
                os.close(self._file)
            self._file = file
            folder = os.open(self.path.parent, os.O_RDONLY | os.O_CLOEXEC)  # so that the name is on the disk too
            try:
                os.fsync(folder)
            finally:
                os.close(folder)
        except OSError as error:
            raise StorageError(f"the journal {self.path} cannot be written: {error.strerror}.") from error

    def append(self, line: dict[str, Any]) -> None:
        """Write a turn, and wait until it is on the disk.

        Raises:
            StorageError: It cannot be written; the journal is unchanged.
        """
        assert self._file is not None
        size = os.fstat(self._file).st_size
        try:
            _write(self._file, line)
        except OSError as error:
            with suppress(OSError):
                os.ftruncate(self._file, size)
            raise StorageError(f"the journal {self.path} cannot be written: {error.strerror}.") from error

    def close(self) -> None:
        """Unlock the session; the file stays if it has an episode."""
        if self._file is not None:
            file, self._file = self._file, None
            if not os.fstat(file).st_size:
                self.path.unlink(missing_ok=True)
            os.close(file)

    def remove(self) -> None:
        """Delete the file of a session that is over."""
        if self._file is not None:
            os.ftruncate(self._file, 0)
        self.close()


def _write(file: int, line: dict[str, Any]) -> None:
    left = memoryview(f"{json_text(line)}\n".encode())
    while left:
        left = left[os.write(file, left) :]
    os.fsync(file)


def _locked(path: Path) -> int:
    """The descriptor of a file that is locked until it is closed.

    Raises:
        BlockingIOError: Another process, or another part of this one, holds it.
    """
    while True:
        file = os.open(path, _FLAGS, PRIVATE)
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            with suppress(FileNotFoundError):
                if os.path.samestat(os.stat(path), os.fstat(file)):
                    return file
        except BaseException:
            os.close(file)
            raise
        os.close(file)  # its holder has removed or replaced it in between
