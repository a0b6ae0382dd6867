"""One open episode on disk: how it began, and each turn, as lines of JSON; what was answered was on disk before.

A session's file is named after the hash of its token, which is not kept. A first line says how the episode began, each
further line is a turn: what was asked, a digest of what came back, the client's request id and the answer. A reset
replaces the file. A line that a crash has cut short was never answered, and is dropped.

While a server has a session, it holds a lock beside the file, so that two servers that see the same folder (one after
the other on different machines, say) cannot both play it.
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
from ragen.files import write_whole

VERSION = 1


class Journal:
    """The file of one session; its methods block, and are called in threads."""

    def __init__(self, folder: Path, token: str) -> None:
        """Know the file; :meth:`load` opens it.

        Args:
            folder: Where journals lie; it exists.
            token: The session's.
        """
        name = sha256(token.encode()).hexdigest()[:40]
        self.path = folder / f"{name}.jsonl"
        self._lock_path = folder / f"{name}.lock"
        self._lock: int | None = None
        self._file: int | None = None

    def load(self) -> list[dict[str, Any]]:
        """Lock the session, and read the lines of its episode; none where there is no episode.

        Raises:
            SessionLostError: Another server has the session, or the file is damaged.
        """
        self._take_lock()
        try:
            raw = self.path.read_bytes()
        except FileNotFoundError:
            return []
        whole = raw[: raw.rfind(b"\n") + 1]
        try:
            lines = [json.loads(line) for line in whole.splitlines()]
            if not lines or lines[0]["version"] != VERSION:
                raise ValueError("its first line is not that of a journal of this version")
            if [line["turn"] for line in lines[1:]] != list(range(len(lines) - 1)):
                raise ValueError("its turns do not follow one another")
        except (ValueError, LookupError, TypeError) as error:
            self.release()
            raise SessionLostError(
                f"the journal {self.path.name} is damaged ({error}); remove it to begin anew."
            ) from error
        self._open()
        if len(whole) < len(raw):
            self._cut(len(whole))
        return lines

    def begin(self, line: dict[str, Any]) -> None:
        """Write the first line of a new episode in the place of what was there.

        Raises:
            StorageError: It cannot be written; the episode before is still there.
        """
        try:
            write_whole(self.path, _text({"version": VERSION, **line}), durable=True)
            _sync_folder(self.path.parent)
            self._open()
        except OSError as error:
            raise StorageError(f"the journal {self.path} cannot be written: {error.strerror}.") from error

    def append(self, line: dict[str, Any]) -> None:
        """Write a turn, and wait until it is on the disk.

        Raises:
            StorageError: It is not; the file is as it was.
        """
        assert self._file is not None
        size = os.fstat(self._file).st_size
        data = memoryview(_text(line).encode())
        try:
            while data:
                data = data[os.write(self._file, data) :]
            os.fsync(self._file)
        except OSError as error:
            with suppress(OSError):
                self._cut(size)
            raise StorageError(f"the journal {self.path} cannot be written: {error.strerror}.") from error

    def release(self) -> None:
        """Let another server have the session."""
        for descriptor in (self._file, self._lock):
            if descriptor is not None:
                os.close(descriptor)
        self._file = self._lock = None

    def remove(self) -> None:
        """The session is over: nothing of it stays."""
        for path in (self.path, self._lock_path):
            path.unlink(missing_ok=True)
        self.release()

    def _take_lock(self) -> None:
        while True:
            self._lock = os.open(self._lock_path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
            try:
                fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                if os.stat(self._lock_path).st_ino == os.fstat(self._lock).st_ino:
                    return
            except BlockingIOError:
                self.release()
                raise SessionLostError("another server that sees the same journals has this session.") from None
            except FileNotFoundError:  # another server has ended the session in between
                pass
            self.release()

    def _open(self) -> None:
        if self._file is not None:
            os.close(self._file)
        self._file = os.open(self.path, os.O_WRONLY | os.O_APPEND | os.O_CLOEXEC)

    def _cut(self, size: int) -> None:
        assert self._file is not None
        os.ftruncate(self._file, size)
        os.fsync(self._file)


def _sync_folder(folder: Path) -> None:
    """Wait until a file's new name is on the disk too."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _text(line: dict[str, Any]) -> str:
    return json.dumps(line, separators=(",", ":")) + "\n"
