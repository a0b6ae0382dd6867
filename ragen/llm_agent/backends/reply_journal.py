"""The replies of a run, in a :class:`.JournalFile`: written as they arrive, before they are played.

A later process with the same prompts takes its replies from there, and asks for the others. A reply is identified by
its environment, turn and prompt, the sampling parameters, and the position of a backend whose samples depend on it.
"""

from __future__ import annotations

import hashlib
import json
import threading
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import asdict, fields
from pathlib import Path
from typing import Any

from envlanes.closing import Closing
from envlanes.ragen.journal import Event, JournalFile
from ragen.llm_agent.backends.base import Reply, Request, Sampling

_DEFAULTS = {field.name: field.default for field in fields(Reply)}


def reply_key(request: Request, sampling: Sampling, position: int = 0) -> str:
    """The key of a reply, as a short text.

    Args:
        request: The request.
        sampling: The sampling parameters.
        position: The backend's; see :class:`~ragen.llm_agent.backends.Backend`.
    """
    prompt = request.messages if request.prompt_ids is None else [int(token) for token in request.prompt_ids]
    asked = [request.env_id, request.turn, position, asdict(sampling), prompt]
    digest = hashlib.sha256(json.dumps(asked, sort_keys=True, default=_image).encode())
    for image in request.images:
        digest.update(_image(image).encode())
    return digest.hexdigest()[:32]


def _image(value: Any) -> str:
    return f"{value.mode} {value.size} {hashlib.sha256(value.tobytes()).hexdigest()}"


class ReplyJournal(Closing):
    """The journal of one output folder, which has one run at a time; used by several threads.

    Attributes:
        replies: Number of replies in it that a run could take.
    """

    def __init__(self, path: Path, about: Mapping[str, Any] | None = None) -> None:
        """Read the replies of earlier runs, or begin a journal.

        Raises:
            ConfigError: The file is of something else, another process writes to it, or it cannot be written.
        """
        self.replies = 0
        self._lock = threading.Lock()
        self._known: dict[str, Event] = {}
        self._usage: Counter[str] = Counter(requests=0, retries=0)
        self._file = JournalFile(path, about)
        for event in self._file.events:
            self._take(event)
        self._file.events.clear()

    def _take(self, event: Event) -> None:
        gave = event["gave"]
        self._usage.update(gave.get("usage", {}))
        if "reply" in event:
            self._known[event["reply"]] = event
            self.replies += 1

    @property
    def usage(self) -> dict[str, float]:
        """The usage of all runs, added up; see :class:`~ragen.llm_agent.backends.Reply`."""
        with self._lock:
            usage: dict[str, float] = {
                name: n for name, n in self._usage.items() if n or name in ("requests", "retries")
            }
        return usage | ({"cost": round(usage["cost"], 9)} if "cost" in usage else {})  # independent of summation order

    def find(self, key: str) -> tuple[Reply, int] | None:
        """The reply with a key, and the backend's position after it; None if there is none yet."""
        event = self._known.get(key)
        return None if event is None else (Reply(**event["gave"]), event["position"])

    def add(self, replies: Iterable[tuple[str, Reply]], position: int = 0) -> None:
        """Write replies by key, with the backend's position after them.

        Raises:
            StorageError: They cannot be written.
        """
        events = []
        for key, reply in replies:
            gave = {name: value for name, value in vars(reply).items() if value != _DEFAULTS[name]}
            for name in ("token_ids", "log_probs", "prompt_ids"):
                if name in gave:
                    gave[name] = list(gave[name])
            name = "reply" if reply.is_answer else "failed"
            events.append({name: key, "position": position, "gave": gave | {"usage": dict(reply.usage)}})
        with self._lock:
            self._file.write(events)
            for event in events:
                self._take(event)

    def forget(self) -> None:
        """Leave only the usage, once all replies were taken up."""
        usage = self.usage
        with self._lock:
            self._file.replace([{"gave": {"usage": usage}}])
            self._known.clear()

    def close(self) -> None:
        """Sync and unlock the file; may be called twice."""
        self._file.close()


def has_replies(path: Path) -> bool:
    """Whether a journal, which need not exist, has a reply."""
    return path.exists() and b'{"reply":' in path.read_bytes()
