"""``replies.jsonl``: every request that was sent and every reply that came, kept at once.

A line of JSON for each: ``sent`` as soon as a request has left, then ``answered`` with the reply, or ``failed``. Lines
are handed to the operating system as they are written, so that no kill of this process loses one, and are brought to
the disk once a second, so that a power cut loses at most what came within that. A line that was cut short is passed
over.

A reply is found again by its key: model, address, sampling and messages, whose it is (the environment and the turn),
and by the attempt that got it. So a run that goes on asks only for what had no answer yet, and what is counted here is
what the server was asked, however often the run was interrupted. Only of requests that were under way when a run was
killed outright, nobody knows the tokens.
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
from ragen.errors import ConfigError
from ragen.files import replacing
from ragen.llm_agent.backends.base import Reply, Request

SYNC_S = 1.0
_DEFAULTS = {field.name: field.default for field in fields(Reply)}


def reply_key(request: Request, *others: Any) -> str:
    """What a reply is found by, as a short text.

    Args:
        request: Whose it is.
        others: What else decides the reply, of types that JSON knows: model, address, sampling, messages as sent.
    """
    told = json.dumps([request.env_id, request.turn, *others], sort_keys=True, ensure_ascii=True)
    return hashlib.sha256(told.encode()).hexdigest()[:32]


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
        except OSError as error:
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

    def _take(self, line: bytes) -> None:
        """Read a line; what is none is passed over."""
        event = _event(line)
        try:
            self._count(event or {})
        except (KeyError, TypeError, AttributeError):  # somebody else's
            return

    def _count(self, event: Mapping[str, Any]) -> None:
        if "before" in event:
            self._usage.update(event["before"])
        elif "sent" in event:
            self._attempts[event["sent"]] += 1
            self._usage["requests"] += 1
            self._usage["retries"] += event["attempt"] > 1
        elif "answered" in event:
            self.replies += 1
            self._usage.update(event["reply"].get("usage", {}))
            if "text" in event["reply"]:
                self._known[event["answered"]] = event["reply"]
        elif event.get("is_given_up"):
            self._usage["failed_requests"] += 1

    @property
    def usage(self) -> dict[str, float]:
        """What all runs have used: requests that were sent, those of them that were further tries, tokens, cost."""
        with self._lock:
            usage: dict[str, float] = dict(self._usage)
        return usage | ({"cost": round(usage["cost"], 9)} if "cost" in usage else {})  # in whatever order it was added

    def find(self, key: str) -> Reply | None:
        """The reply of a key; None where none came yet."""
        known = self._known.get(key)
        return None if known is None else Reply(**known)

    def sent(self, key: str, request: Request) -> int:
        """A request has left; which attempt it is, from 1."""
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

    def failed(self, key: str, request: Request, attempt: int, reason: str, is_given_up: bool) -> None:
        """An attempt failed.

        Args:
            key: Of the request.
            request: The request.
            attempt: Which attempt; 0 where the request had not left.
            reason: Why.
            is_given_up: Whether there is no further one in this run.
        """
        self._write(
            {"failed": key, **_whose(request), "attempt": attempt, "reason": reason, "is_given_up": is_given_up}
        )

    def _write(self, event: Mapping[str, Any]) -> None:
        line = json.dumps(event, ensure_ascii=True) + "\n"
        with self._lock:
            if self._file is None:
                return  # closed: too late to be kept
            _write_all(self._file, line.encode("ascii"))
            self._count(event)
        self._has_news.set()

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


def _write_all(file: int, data: bytes) -> None:
    while data:
        data = data[os.write(file, data) :]
