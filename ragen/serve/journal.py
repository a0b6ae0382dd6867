"""Open episodes on disk, as lines of JSON: how each began, and its turns, written before they are answered.

::

    FOLDER/SESSION.jsonl        an episode: its first line, which a reset replaces, and a line for each turn
    FOLDER/SESSION.lock         locked by the server that holds the session
    FOLDER/servers/NAME.log     the turns of all sessions of one server, in the order in which they were played
    FOLDER/servers/NAME.lock    locked while that server lives

A session's file is named after the hash of its token; the token itself is not stored. The first line is synced by
itself, turns are synced in groups: those that arrive while one group is being synced form the next. The lines of a
group are written to their sessions' files and to the server's log, and only the log is synced. After a machine is lost,
the next server that reads a journal completes the files from that machine's log; a server that was only killed has lost
nothing. A line that was cut short by a crash was never answered, and is dropped.

The locks keep two servers that see the same folder (such as a server and its successor on another machine) from playing
the same session. All files are their owner's alone.
"""

from __future__ import annotations

import asyncio
import fcntl
import json
import os
import secrets
import threading
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from hashlib import sha256
from pathlib import Path
from typing import Any

from ragen.errors import SessionLostError, StorageError
from ragen.files import json_text, part_of, write_whole

VERSION = 1
PRIVATE, PRIVATE_FOLDER = 0o600, 0o700  # modes: turns may hold what is nobody else's business
LARGEST_LOG = 64 << 20
"""Size of a server's log, in bytes, after which sessions' files are synced and a new log is begun."""
SYNCING = 8  # files synced at the same time
READING = "reading.lock"  # held by a server while it looks for logs of dead servers


class Journals:
    """The journals of one server; methods that block are called in threads."""

    def __init__(self, folder: Path) -> None:
        """Create the folder, and begin this server's log.

        Args:
            folder: The folder of the journals, which servers may share.

        Raises:
            OSError: It cannot be created or written.
        """
        self.folder, self._servers = folder, folder / "servers"
        for path in (folder, self._servers):
            path.mkdir(PRIVATE_FOLDER, parents=True, exist_ok=True)
        self._name = secrets.token_hex(8)
        with _waited_for(self._servers / READING):  # else another server could consider this one dead
            self._seat = _locked(self._servers / f"{self._name}.lock")
        self._path = self._servers / f"{self._name}.log"
        self._log = self._new_log()
        self._size = 0
        self._written: set[Path] = set()  # sessions' files written since the log was begun
        self._before: set[Path] = set()  # those written during the previous log, which still exists
        self._pending: list[tuple[Journal, bytes, asyncio.Future[None]]] = []
        self._writer: asyncio.Task[None] | None = None
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="ragen journals")
        self._reading = threading.Lock()

    def of(self, token: str) -> Journal:
        """The journal of a session."""
        return Journal(self, token)

    async def append(self, journal: Journal, line: dict[str, Any]) -> None:
        """Write a turn, and wait until the group in which it is written is on the disk.

        Raises:
            StorageError: It cannot be written; the journal is unchanged.
        """
        loop = asyncio.get_running_loop()
        done = loop.create_future()
        self._pending.append((journal, _text(line).encode(), done))
        if self._writer is None or self._writer.done():
            self._writer = loop.create_task(self._write_groups())
        await done

    async def _write_groups(self) -> None:
        while self._pending:
            group, self._pending = self._pending, []
            lines = [(journal, data) for journal, data, _ in group]
            answers: Sequence[Exception | None]
            try:
                answers = await asyncio.get_running_loop().run_in_executor(self._thread, self._write, lines)
            except Exception as error:  # the server ends
                answers = [error] * len(group)
            for (_, _, done), answer in zip(group, answers, strict=True):
                if done.done():
                    continue
                if answer is None:
                    done.set_result(None)
                else:
                    done.set_exception(answer)

    def _write(self, group: list[tuple[Journal, bytes]]) -> list[StorageError | None]:
        """Write and sync a group; for each line None, or why it is not on the disk."""
        answers: list[StorageError | None] = []
        records: list[bytes] = []
        sizes: list[int] = []
        for journal, data in group:
            sizes.append(journal.size)
            try:
                journal.write(data)
                records.append(f"{journal.name} {journal.episode} ".encode() + data)
                answers.append(None)
            except OSError as error:
                answers.append(StorageError(f"the journal {journal.path} cannot be written: {error.strerror}."))
        try:
            if os.fstat(self._log).st_size != self._size:  # a group before failed halfway
                os.ftruncate(self._log, self._size)
            _write_all(self._log, b"".join(records))
            os.fsync(self._log)
        except OSError as error:
            for place, (journal, _) in enumerate(group):
                if answers[place] is None:
                    with suppress(OSError):
                        journal.cut(sizes[place])
                    answers[place] = StorageError(f"the log {self._path} cannot be written: {error.strerror}.")
            return answers
        self._size += sum(map(len, records))
        self._written.update(journal.path for journal, _ in group)
        if self._size > LARGEST_LOG:
            with suppress(OSError):  # the log grows on; the next group tries again
                self._begin_anew()
        return answers

    def _begin_anew(self) -> None:
        """Begin a new log; the previous one is kept until the next change, when most of its files are on the disk."""
        before = self._path.with_suffix(".old")
        _sync(self._before)
        before.unlink(missing_ok=True)
        self._path.rename(before)
        self._before, self._written = self._written, set()
        os.close(self._log)
        self._log, self._size = self._new_log(), 0

    def _new_log(self) -> int:
        log = os.open(self._path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, PRIVATE)
        _sync_folder(self._servers)
        return log

    def take_in(self) -> None:
        """Complete the journals of dead servers from their logs.

        Raises:
            OSError: A file cannot be read or written; its log is kept.
        """
        with self._reading, _waited_for(self._servers / READING):
            for seat in self._servers.glob("*.lock"):
                if seat.name in (f"{self._name}.lock", READING):
                    continue
                with suppress(BlockingIOError):
                    lock = _locked(seat)
                    try:
                        logs = [seat.with_suffix(".old"), seat.with_suffix(".log")]
                        _sync(self._completed([log.read_bytes() for log in logs if log.exists()]))
                        for path in (*logs, seat):
                            path.unlink(missing_ok=True)
                    finally:
                        os.close(lock)

    def _completed(self, logs: Iterable[bytes]) -> list[Path]:
        """Write turns that only logs have to sessions' files; returns the files."""
        turns: dict[tuple[str, str], list[tuple[int, bytes]]] = {}
        for log in logs:
            for record in log[: log.rfind(b"\n") + 1].splitlines(keepends=True):
                try:
                    *whose, line = record.split(b" ", 2)
                    name, episode = map(bytes.decode, whose)
                    turn = int(json.loads(line)["turn"])
                except (ValueError, LookupError, TypeError):  # neither it nor what follows was ever synced
                    break
                turns.setdefault((name, episode), []).append((turn, line))
        paths = []
        for (name, episode), lines in turns.items():
            path = self.folder / f"{name}.jsonl"
            with suppress(FileNotFoundError, ValueError, LookupError):  # it has ended, or is damaged: see load
                raw = path.read_bytes()
                whole = raw[: raw.rfind(b"\n") + 1]
                head, *there = whole.splitlines()
                if json.loads(head).get("episode", "") != episode:
                    continue  # of an earlier episode
                paths.append(path)
                missing: list[bytes] = []
                for turn, line in lines:
                    if turn == len(there) + len(missing):
                        missing.append(line)
                if missing:
                    with path.open("r+b") as file:
                        file.truncate(len(whole))
                        file.seek(len(whole))
                        file.write(b"".join(missing))
        return paths

    def close(self) -> None:
        """End with the server; the next server takes in its log."""
        self._thread.shutdown()
        for descriptor in (self._log, self._seat):
            os.close(descriptor)


class Journal:
    """The file of one session; methods that block are called in threads.

    Attributes:
        name: Identifies the session in file names and logs.
        path: The file.
        episode: Identifies the episode among those of the session.
    """

    def __init__(self, journals: Journals, token: str) -> None:
        """Name the file; :meth:`load` opens it.

        Args:
            journals: The server's journals.
            token: The session's token.
        """
        self._journals = journals
        self.name = sha256(token.encode()).hexdigest()[:40]
        self.path = journals.folder / f"{self.name}.jsonl"
        self.episode = ""
        self._lock_path = self.path.with_suffix(".lock")
        self._lock: int | None = None
        self._file: int | None = None

    def load(self) -> list[dict[str, Any]]:
        """Lock the session, and read the lines of its episode; empty if there is none.

        Raises:
            SessionLostError: Another server holds the session, or the file is damaged.
        """
        self._take_lock()
        try:
            part_of(self.path).unlink(missing_ok=True)  # of a server that was killed during a reset
            self._journals.take_in()
            raw = self.path.read_bytes() if self.path.exists() else None
        except OSError as error:
            self.release()
            raise SessionLostError(f"the journal {self.path.name} cannot be read: {error.strerror}.") from error
        if raw is None:
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
        self.episode = lines[0].get("episode", "")
        self._open()
        if len(whole) < len(raw):
            self.cut(len(whole))
        return lines

    def begin(self, line: dict[str, Any]) -> None:
        """Replace the file by the first line of a new episode.

        Raises:
            StorageError: It cannot be written; the previous episode is still there.
        """
        episode = secrets.token_hex(8)
        try:
            write_whole(self.path, _text({"version": VERSION, "episode": episode, **line}), durable=True, mode=PRIVATE)
            _sync_folder(self.path.parent)
            self._open()
        except OSError as error:
            raise StorageError(f"the journal {self.path} cannot be written: {error.strerror}.") from error
        self.episode = episode

    async def append(self, line: dict[str, Any]) -> None:
        """Write a turn, and wait until it is on the disk; see :meth:`Journals.append`."""
        await self._journals.append(self, line)

    @property
    def size(self) -> int:
        """The size of the file in bytes."""
        assert self._file is not None
        return os.fstat(self._file).st_size

    def write(self, data: bytes) -> None:
        """Write a line, without waiting until it is on the disk.

        Raises:
            OSError: It cannot be written; the file is unchanged.
        """
        assert self._file is not None
        size = self.size
        try:
            _write_all(self._file, data)
        except OSError:
            with suppress(OSError):
                self.cut(size)
            raise

    def cut(self, size: int) -> None:
        """Truncate the file to this many bytes."""
        assert self._file is not None
        os.ftruncate(self._file, size)
        os.fsync(self._file)

    def hand_over(self) -> None:
        """Let another server have the session while this one lives, whose log other servers do not read."""
        try:
            if self._file is not None:
                os.fsync(self._file)
            elif self._lock is not None:  # there is no episode
                self._lock_path.unlink(missing_ok=True)
        finally:
            self.release()

    def release(self) -> None:
        """Unlock the session."""
        for descriptor in (self._file, self._lock):
            if descriptor is not None:
                os.close(descriptor)
        self._file = self._lock = None

    def remove(self) -> None:
        """Delete the files of a session that is over."""
        for path in (self.path, self._lock_path):
            path.unlink(missing_ok=True)
        self.release()

    def _take_lock(self) -> None:
        while True:
            try:
                self._lock = _locked(self._lock_path)
                return
            except BlockingIOError:
                raise SessionLostError("another server that sees the same journals has this session.") from None
            except FileNotFoundError:  # another server has ended the session in between
                pass

    def _open(self) -> None:
        if self._file is not None:
            os.close(self._file)
        self._file = os.open(self.path, os.O_WRONLY | os.O_APPEND | os.O_CLOEXEC)


def _sync_folder(folder: Path) -> None:
    """Sync a folder, so that a new file name is on the disk too."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _text(line: dict[str, Any]) -> str:
    return json_text(line) + "\n"


def _write_all(descriptor: int, data: bytes) -> None:
    left = memoryview(data)
    while left:
        left = left[os.write(descriptor, left) :]


def _sync(paths: Iterable[Path]) -> None:
    """Sync files; those that no longer exist are skipped."""

    def sync(path: Path) -> None:
        with suppress(FileNotFoundError), path.open("rb") as file:
            os.fsync(file.fileno())

    with ThreadPoolExecutor(SYNCING) as threads:
        list(threads.map(sync, paths))


def _locked(path: Path) -> int:
    """The descriptor of a file that is locked until it is closed.

    Raises:
        BlockingIOError: Another process, or another part of this one, holds it.
        FileNotFoundError: It was removed meanwhile.
    """
    lock = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, PRIVATE)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        if os.stat(path).st_ino != os.fstat(lock).st_ino:
            raise FileNotFoundError(path)
    except BaseException:
        os.close(lock)
        raise
    return lock


@contextmanager
def _waited_for(path: Path) -> Iterator[None]:
    """Hold the lock of a file that is never removed."""
    lock = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, PRIVATE)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield
    finally:
        os.close(lock)
