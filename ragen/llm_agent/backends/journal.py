"""``replies.jsonl``: a journal of every request sent and every reply received, written immediately.

Each event is a line of JSON: ``sent`` before a request is sent, then ``answered`` with the reply, or ``failed``. Each
line is passed to the operating system when it is written, so that killing this process loses none. An incomplete line
is skipped.

A reply is identified by its key (model, address, sampling, messages, environment and turn). A resumed run therefore
sends only requests without an answer.

``requests`` counts the tries of all runs. Requests that ended without an answer are also counted as ``unconfirmed``:
those under way when a run was stopped or killed, whose tries count as one, those that timed out, and those whose
connection failed. The server may or may not have received them. Their tokens are unknown.

When the disk is full, no more requests are sent. To store the replies under way, which are already paid for, a file of
``RESERVE_BYTES`` beside the journal is deleted.
"""

from __future__ import annotations

import errno
import hashlib
import json
import os
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any, Self

from envlanes.closing import Closing
from ragen.errors import ConfigError, StorageError, shown_path
from ragen.files import json_text, replacing
from ragen.llm_agent.backends.base import TOKENS, Reply, Request

RESERVE_BYTES = 4 * 2**20
RESERVE = ".reserve"
Usage = Mapping[str, float]
_DEFAULTS = {field.name: field.default for field in fields(Reply)}


def reply_key(request: Request, *others: Any) -> str:
    """The key of a reply, as a short text.

    Args:
        request: The request.
        others: Further JSON values that determine the reply: model, address, sampling, messages as sent.
    """
    text = json.dumps([request.env_id, request.turn, *others], sort_keys=True, ensure_ascii=True)
    return hashlib.sha256(text.encode()).hexdigest()[:32]


@dataclass(frozen=True)
class Failure:
    """Why a request failed.

    Attributes:
        reason: The reason, for messages.
        retries: How often it was tried again.
        is_out_of_context: Whether the prompt does not fit the model's context.
        is_unconfirmed: Whether no answer came, so that the server may or may not have received it.
        cure: The key that settles it, for messages; may be empty.
    """

    reason: str
    retries: int = 0
    is_out_of_context: bool = False
    is_unconfirmed: bool = False
    cure: str = ""


class ReplyJournal(Closing):
    """The journal of one output folder, which has one run at a time. A context manager; call ``open`` first.

    Attributes:
        path: Path of the file.
        replies: Number of replies in it.
        faults: Cause of failed requests, such as ``HTTP 429``, to their number.
    """

    def __init__(self, path: Path) -> None:
        """Set the path.

        Args:
            path: Path of the file, which need not exist.
        """
        self.path = path
        self.replies = 0
        self.faults: Counter[str] = Counter()
        self._known: dict[str, dict[str, Any]] = {}
        self._sent: set[str] = set()
        self._usage: Counter[str] = Counter(requests=0, retries=0)
        self._cost: Callable[[Usage], Usage] = lambda usage: {}
        self._unpriced = 0
        self._open = 0  # sent, but neither answered nor failed
        self._fault: OSError | None = None
        self._file: int | None = None
        self._lock = threading.Lock()

    def open(self, cost: Callable[[Usage], Usage] | None = None) -> Self:
        """Read existing lines, and append from then on.

        Args:
            cost: The cost of replies that were recorded without one; see ``StreamingBackend.cost``.

        Raises:
            ConfigError: The file cannot be read or written.
        """
        self._cost = cost or self._cost
        try:
            self._file = os.open(self.path, os.O_RDWR | os.O_APPEND | os.O_CREAT, 0o644)
            self._reserve_space()
        except OSError as error:
            self.close()
            room = f" {RESERVE_BYTES >> 20} MiB must be free there." if error.errno == errno.ENOSPC else ""
            raise ConfigError(f"{shown_path(self.path)} cannot be written: {error.strerror}.{room}") from error
        try:
            text = self.path.read_bytes()
            for line in text.split(b"\n"):
                self._take(line)
            if text and not text.endswith(b"\n"):
                os.write(self._file, b"\n")
        except BaseException:
            self.close()
            raise
        return self

    def _reserve_space(self) -> None:
        """Reserve disk space for the replies that are under way when the disk becomes full."""
        self.path.with_name(RESERVE).write_bytes(bytes(RESERVE_BYTES))

    def _take(self, line: bytes) -> None:
        """Read a line; an invalid one is skipped."""
        event = _event(line)
        try:
            self._count(event or {})
        except (KeyError, TypeError, AttributeError):  # not of this package
            return

    def _count(self, event: Mapping[str, Any]) -> None:
        if "sent" in event:
            self._usage["requests"] += 1
            self._usage["retries"] += event["sent"] in self._sent
            self._sent.add(event["sent"])
            self._open += 1
        elif "answered" in event:
            usage = self._priced(event["reply"].get("usage", {}))
            is_counted = all(name in usage for name in TOKENS)
            self._ended(event)
            self.replies += 1
            self._usage.update(usage)
            self._usage["uncounted_replies"] += not is_counted
            self._unpriced += is_counted and "cost" not in usage
            if "text" in event["reply"]:
                self._known[event["answered"]] = event["reply"] | {"usage": usage}
        elif "failed" in event:
            self._ended(event)
            self._usage["failed_requests"] += not event.get("is_out_of_context")
            self._usage["unconfirmed"] += bool(event.get("is_unconfirmed"))
            self.faults[event["reason"].partition(":")[0]] += 1

    def _ended(self, event: Mapping[str, Any]) -> None:
        self._open -= 1
        self._usage["requests"] += event["retries"]
        self._usage["retries"] += event["retries"]

    def _priced(self, usage: Usage) -> dict[str, float]:
        return {**self._cost(usage), **usage}

    @property
    def usage(self) -> dict[str, float]:
        """The usage of all runs: requests sent, how many of them were retries, tokens, cost.

        ``unconfirmed``, if any, counts the requests without an answer, ``uncounted_replies`` the replies whose tokens
        the server did not report, and ``unpriced_replies`` those that ``cost`` does not include although their tokens
        are known.
        """
        with self._lock:
            usage: dict[str, float] = {
                name: n for name, n in self._usage.items() if n or name in ("requests", "retries")
            }
            if self._unpriced and "cost" in usage:
                usage["unpriced_replies"] = self._unpriced
            if unconfirmed := self._open + self._usage["unconfirmed"]:
                usage["unconfirmed"] = unconfirmed
        return usage | ({"cost": round(usage["cost"], 9)} if "cost" in usage else {})  # independent of summation order

    def find(self, key: str) -> Reply | None:
        """The reply with a key; None if there is none yet."""
        known = self._known.get(key)
        return None if known is None else Reply(**known)

    def sent(self, key: str, request: Request) -> None:
        """Record a request before it is sent.

        Raises:
            StorageError: The journal cannot store a reply to it, so it must not be sent.
        """
        if self._fault is not None:
            raise storage_error(self.path.parent, self._fault)
        self._write({"sent": key, **_request_id(request)})

    def answered(self, key: str, request: Request, reply: Reply, retries: int, seconds: float) -> None:
        """Record a reply.

        Args:
            key: Key of the request.
            request: The request.
            reply: The reply; its usage excludes ``requests`` and ``retries``.
            retries: How often the request was tried again.
            seconds: Duration of all tries.
        """
        kept = {name: value for name, value in vars(reply).items() if value != _DEFAULTS[name]}
        event = {"answered": key, **_request_id(request), "retries": retries, "latency": round(seconds, 4)}
        self._write(event | {"reply": kept | {"usage": dict(reply.usage)}})

    def failed(self, key: str, request: Request, failure: Failure) -> None:
        """Record a request that failed after its retries.

        Args:
            key: Key of the request.
            request: The request.
            failure: Why it failed, in words that may be shown.
        """
        self._write({"failed": key, **_request_id(request), **asdict(failure)})

    def _write(self, event: Mapping[str, Any]) -> None:
        line = json_text(event) + "\n"
        with self._lock:
            if self._file is None:
                return  # closed: too late to be kept
            self._append(self._file, line.encode())
            self._count(event)

    def _append(self, file: int, data: bytes) -> None:
        """Write all of the data.

        Raises:
            StorageError: That is impossible even with the reserved space.
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

    def drop_texts(self) -> None:
        """Rewrite the journal without texts and tokens, for rows without texts; it can no longer answer requests."""
        events = [event for event in map(_event, self.path.read_bytes().split(b"\n")) if event is not None]
        for event in events:
            for name in ("text", "token_ids", "log_probs", "prompt_ids"):
                event.get("reply", {}).pop(name, None)
        self.close()
        self._known.clear()
        replace_lines(self.path, events)

    def close(self) -> None:
        """Sync the file to disk and close it; may be called twice."""
        with self._lock:
            file, self._file = self._file, None
        if file is not None:
            self._release_reserve()
            try:
                os.fsync(file)
            finally:
                os.close(file)


def has_replies(path: Path) -> bool:
    """Whether a journal, which need not exist, has recorded a reply."""
    return path.exists() and any("answered" in (_event(line) or {}) for line in path.read_bytes().split(b"\n"))


def replace_lines(path: Path, events: Iterable[Mapping[str, Any]]) -> None:
    """Replace a file atomically with lines of JSON."""
    with replacing(path, durable=True) as file:
        file.writelines((json_text(event) + "\n").encode() for event in events)


def _event(line: bytes) -> dict[str, Any] | None:
    try:
        event = json.loads(line)
    except ValueError:
        return None
    return event if isinstance(event, dict) else None


def _request_id(request: Request) -> dict[str, Any]:
    return {"env_id": request.env_id, "turn": request.turn, "at": round(time.time(), 3)}


def storage_error(folder: Path, error: OSError) -> StorageError:
    """The error for a run's folder that cannot be written to."""
    return StorageError(
        f"{shown_path(folder)} cannot be written to: {error.strerror or error}. What was answered is kept; make "
        "room there, and resume the run."
    )
