"""``replies.jsonl``: every request that was sent and every reply that came, kept at once.

A line of JSON for each: ``sent`` before a request leaves, then ``answered`` with the reply, or ``failed``. Lines are
handed to the operating system as they are written, so that no kill of this process loses one, and are brought to the
disk once a second, so that a power cut loses at most what came within that. A line that was cut short is passed over.

A reply is found again by its key: model, address, sampling and messages, whose it is (the environment and the turn),
and by the attempt that got it. So a run that goes on asks only for what had no answer yet.

``requests`` counts what was sent in all runs, less what a refused connection kept from leaving. What was under way when
a run was stopped or killed is among them, and is counted as ``unconfirmed`` too: the server may or may not have
received it, so its own count is between ``requests - unconfirmed`` and ``requests``. Their tokens are unknown.

Where the disk is full, nothing more is sent. The replies that are under way are paid for and still come: a file of
``RESERVE_BYTES`` beside the journal is deleted then, which makes room for them.
"""

from __future__ import annotations

import hashlib
import json
import os
import threading
import time
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import fields
from pathlib import Path
from typing import Any, Self

from ragen.closing import Closing
from ragen.errors import ConfigError, StorageError
from ragen.files import replacing
from ragen.llm_agent.backends.base import Reply, Request

SYNC_S = 1.0
RESERVE_BYTES = 4 * 2**20
RESERVE = ".reserve"
_DEFAULTS = {field.name: field.default for field in fields(Reply)}


def reply_key(request: Request, *others: Any) -> str:
    """What a reply is found by, as a short text.

    Args:
        request: Whose it is.
        others: What else decides the reply, of types that JSON knows: model, address, sampling, messages as sent.
    """
    text = json.dumps([request.env_id, request.turn, *others], sort_keys=True, ensure_ascii=True)
    return hashlib.sha256(text.encode()).hexdigest()[:32]


class ReplyJournal(Closing):
    """The journal of one output folder, which has one run at a time. A context manager; ``open`` comes first.

    Attributes:
        path: Of the file.
        replies: How many replies are in it.
    """

    def __init__(self, path: Path) -> None:
        """Take the path.

        Args:
            path: Of the file, which need not be there.
        """
        self.path = path
        self.replies = 0
        self._known: dict[str, dict[str, Any]] = {}
        self._attempts: Counter[str] = Counter()
        self._usage: Counter[str] = Counter(requests=0, retries=0)
        self._open: set[tuple[str, int]] = set()  # sent, and neither answered nor failed
        self._fault: OSError | None = None
        self._file: int | None = None
        self._lock = threading.Lock()
        self._has_news, self._is_closing = threading.Event(), threading.Event()
        self._syncing: threading.Thread | None = None

    def open(self, used_before: Mapping[str, float] | None = None) -> Self:
        """Read what is there, and begin to write behind it.

        Args:
            used_before: What was used before there was a journal; counted where this begins one.

        Raises:
            ConfigError: The file cannot be read or written.
        """
        try:
            self._file = os.open(self.path, os.O_RDWR | os.O_APPEND | os.O_CREAT, 0o644)
            self._take_reserve()
        except OSError as error:
            self.close()
            raise ConfigError(f"{self.path} cannot be written: {error.strerror}.") from error
        try:
            text = self.path.read_bytes()
            for line in text.split(b"\n"):
                self._take(line)
            if text and not text.endswith(b"\n"):
                os.write(self._file, b"\n")
            if not text and used_before:
                self._write({"before": dict(used_before)})
        except BaseException:
            self.close()
            raise
        self._syncing = threading.Thread(target=self._sync_now_and_then, name="ragen-journal", daemon=True)
        self._syncing.start()
        return self

    def _take_reserve(self) -> None:
        """Have the disk keep room for what is under way when it is full."""
        self.path.with_name(RESERVE).write_bytes(bytes(RESERVE_BYTES))

    def _take(self, line: bytes) -> None:
        """Read a line; what is none is passed over."""
        event = _event(line)
        try:
            self._count(event or {})
        except (KeyError, TypeError, AttributeError):  # not of this package
            return

    def _count(self, event: Mapping[str, Any]) -> None:
        if "before" in event:
            self._usage.update(event["before"])
        elif "sent" in event:
            self._attempts[event["sent"]] = max(event["attempt"], self._attempts[event["sent"]])
            self._open.add((event["sent"], event["attempt"]))
            self._usage["requests"] += 1
            self._usage["retries"] += event["attempt"] > 1
        elif "answered" in event:
            self.replies += 1
            self._open.discard((event["answered"], event["attempt"]))
            self._usage.update(event["reply"].get("usage", {}))
            if "text" in event["reply"]:
                self._known[event["answered"]] = event["reply"]
        elif "failed" in event:
            self._open.discard((event["failed"], event["attempt"]))
            self._usage["failed_requests"] += bool(event.get("is_given_up"))
            if event.get("has_left") is False:
                self._usage["requests"] -= 1
                self._usage["retries"] -= event["attempt"] > 1

    @property
    def usage(self) -> dict[str, float]:
        """What all runs have used: requests that were sent, those of them that were further tries, tokens, cost.

        ``unconfirmed``, where there are any, are the requests that were neither answered nor failed.
        """
        with self._lock:
            usage: dict[str, float] = {
                name: n for name, n in self._usage.items() if n or name in ("requests", "retries")
            }
            if self._open:
                usage["unconfirmed"] = len(self._open)
        return usage | ({"cost": round(usage["cost"], 9)} if "cost" in usage else {})  # in whatever order it was added

    def find(self, key: str) -> Reply | None:
        """The reply of a key; None where none came yet."""
        known = self._known.get(key)
        return None if known is None else Reply(**known)

    def sent(self, key: str, request: Request) -> int:
        """A request is about to leave; which attempt it is, from 1.

        Raises:
            StorageError: The journal cannot keep a reply to it, so it must not leave.
        """
        if self._fault is not None:
            raise storage_error(self.path.parent, self._fault)
        attempt = self._attempts[key] + 1
        self._write({"sent": key, **_whose(request), "attempt": attempt})
        return attempt

    def answered(self, key: str, request: Request, attempt: int, reply: Reply, seconds: float) -> None:
        """A reply came.

        Args:
            key: Of the request.
            request: The request.
            attempt: Which attempt got it.
            reply: The reply, its usage without ``requests`` and ``retries``, which are counted as they are sent.
            seconds: How long that attempt took.
        """
        kept = {name: value for name, value in vars(reply).items() if value != _DEFAULTS[name]}
        kept["usage"] = dict(reply.usage)
        self._write(
            {"answered": key, **_whose(request), "attempt": attempt, "latency": round(seconds, 4), "reply": kept}
        )

    def failed(
        self, key: str, request: Request, attempt: int, reason: str, is_given_up: bool, has_left: bool = True
    ) -> None:
        """An attempt failed.

        Args:
            key: Of the request.
            request: The request.
            attempt: Which attempt.
            reason: Why.
            is_given_up: Whether there is no further one in this run.
            has_left: Whether the server may have received it.
        """
        event = {"failed": key, **_whose(request), "attempt": attempt, "reason": reason, "is_given_up": is_given_up}
        self._write(event if has_left else event | {"has_left": False})

    def _write(self, event: Mapping[str, Any]) -> None:
        line = json.dumps(event, ensure_ascii=True) + "\n"
        with self._lock:
            if self._file is None:
                return  # closed: too late to be kept
            self._append(self._file, line.encode("ascii"))
            self._count(event)
        self._has_news.set()

    def _append(self, file: int, data: bytes) -> None:
        """Write all of it.

        Raises:
            StorageError: That cannot be done, also with the room that was reserved.
        """
        while data:
            try:
                data = data[os.write(file, data) :]
            except OSError as error:
                is_first, self._fault = self._fault is None, error
                if not (is_first and self._release_reserve()):
                    raise storage_error(self.path.parent, error) from error

    def _release_reserve(self) -> bool:
        try:
            self.path.with_name(RESERVE).unlink()
        except OSError:
            return False
        return True

    def _sync_now_and_then(self) -> None:
        while not self._is_closing.wait(SYNC_S):
            if self._has_news.is_set():
                self._sync()

    def _sync(self) -> None:
        self._has_news.clear()
        with self._lock:
            file = None if self._file is None else os.dup(self._file)
        if file is None:
            return
        try:
            os.fsync(file)
        except OSError as error:
            self._fault = error
        finally:
            os.close(file)

    def drop_texts(self) -> None:
        """Write the journal anew without texts and tokens, for rows without texts; it answers nothing from then on."""
        events = [event for event in map(_event, self.path.read_bytes().split(b"\n")) if event is not None]
        for event in events:
            for name in ("text", "token_ids", "log_probs", "prompt_ids"):
                event.get("reply", {}).pop(name, None)
        self.close()
        self._known.clear()
        replace_lines(self.path, events)

    def close(self) -> None:
        """Bring everything to the disk, and close the file; may be called twice."""
        self._is_closing.set()
        if self._syncing is not None:
            self._syncing.join()
        with self._lock:
            file, self._file = self._file, None
        if file is not None:
            self._release_reserve()
            try:
                os.fsync(file)
            finally:
                os.close(file)


def replace_lines(path: Path, events: Iterable[Mapping[str, Any]]) -> None:
    """Write lines of JSON in the place of a file, as a whole."""
    with replacing(path, durable=True) as file:
        file.writelines((json.dumps(event) + "\n").encode() for event in events)


def _event(line: bytes) -> dict[str, Any] | None:
    try:
        event = json.loads(line)
    except ValueError:
        return None
    return event if isinstance(event, dict) else None


def _whose(request: Request) -> dict[str, Any]:
    return {"env_id": request.env_id, "turn": request.turn, "at": round(time.time(), 3)}


def storage_error(folder: Path, error: OSError) -> StorageError:
    """That a run's folder takes nothing more, as a sentence that says what to do."""
    return StorageError(
        f"{folder} cannot be written to: {error.strerror or error}. What was answered is kept; make room there, and "
        "the same command with resume=true goes on."
    )
