"""The replies of the training step in flight, so that a job that was killed asks its servers only for the others.

verl continues from its last checkpoint. If that was taken after the step before the one in flight, the weights and the
prompts of the first step are those of the recorded replies, which are taken; those of any other step are dropped. Each
process of agent loops writes a journal of its own, and reads those that a killed job has left in the folder.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import os
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from uuid import uuid4

from envlanes.ragen.journal import Event, JournalFile, NotPlain, packed, read_journal
from ragen.errors import ConfigError


@dataclass(frozen=True)
class SampledReply:
    """A server's reply.

    Attributes:
        tokens: The sampled tokens.
        log_probs: Of each token; None if unknown.
        extra_fields: Further values from the server, such as the version of its weights.
    """

    tokens: list[int]
    log_probs: list[float] | None
    extra_fields: dict[str, Any]


class StepReplies:
    """The journal of one process."""

    def __init__(self, folder: Path, about: Mapping[str, Any]) -> None:
        """Set the folder of the journals, which need not exist, and what the job is about."""
        self._folder, self._about = folder, dict(about)
        self._file: JournalFile | None = None
        self._known: dict[str, list[Event]] = {}
        self._step: int | None = None

    async def reply(
        self, step: int, place: str, asked: Mapping[str, Any], prompt: Sequence[int], ask: Callable[[], Awaitable[Any]]
    ) -> SampledReply:
        """The recorded reply, or else the server's, which is recorded.

        Args:
            step: The training step.
            place: The trajectory, and the index of this reply in it.
            asked: The sampling parameters.
            prompt: The tokens of the prompt.
            ask: Has the server answer.
        """
        if step != self._step:
            self._begin(step)
        text = json.dumps([place, asked, list(prompt)], sort_keys=True, default=str)
        key = hashlib.sha256(text.encode()).hexdigest()[:32]
        if known := self._known.get(key):
            return SampledReply(*known.pop()["gave"])
        output = await ask()
        log_probs = [float(each) for each in output.log_probs] if output.log_probs else None
        reply = SampledReply([int(token) for token in output.token_ids], log_probs, dict(output.extra_fields))
        try:
            event = {"reply": key, "step": step, "gave": [reply.tokens, reply.log_probs, packed(reply.extra_fields)]}
        except NotPlain:  # a later job asks again
            return reply
        assert self._file is not None
        await asyncio.to_thread(self._file.write, [event])
        return reply

    def _begin(self, step: int) -> None:
        """Begin a step: its replies are those of an earlier job if it is the first of this process."""
        left = sorted(self._folder.glob("*.jsonl")) if self._step is None and self._folder.is_dir() else []
        self._step, self._known = step, {}
        events = [event for path in left for event in _events_of(path, self._about) if event.get("step") == step]
        for event in events:
            self._known.setdefault(event["reply"], []).append(event)
        if self._file is None:
            self._file = JournalFile(self._folder / f"{os.getpid()}-{uuid4().hex[:8]}.jsonl", self._about)
            self._file.write(events)  # before the files that they are from go
            _remove(left, self._about)
        else:
            self._file.replace([])


def _events_of(path: Path, about: Mapping[str, Any]) -> list[Event]:
    """The events of a journal about the same; none if there is no such journal any more."""
    try:
        known, events = read_journal(path)
    except ConfigError:
        return []
    return events if known == about else []


def _remove(paths: Sequence[Path], about: Mapping[str, Any]) -> None:
    """Remove the journals of processes that have ended."""
    for path in paths:
        try:
            JournalFile(path, about).remove()
        except ConfigError:  # its process lives
            continue
