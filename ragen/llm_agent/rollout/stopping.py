"""How a run is stopped before its end, and what it says then: what is kept, and the command that goes on.

SIGTERM, which batch systems send before they kill, is taken as Ctrl-C: nothing is lost, and the exit code is its own.
"""

from __future__ import annotations

import shlex
import signal
import sys
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from ragen.llm_agent.backends.streaming import StreamingBackend
from ragen.llm_agent.config.command_line import STOPPED, called_as
from ragen.llm_agent.config.loading import setting
from ragen.llm_agent.rollout.actor import Actor

TERMINATED = 128 + signal.SIGTERM
"""Exit code after SIGTERM."""


class Stop:
    """How a run was stopped.

    Attributes:
        is_terminated: Whether by SIGTERM.
    """

    def __init__(self) -> None:
        """Not yet."""
        self.is_terminated = False

    @property
    def code(self) -> int:
        """The exit code of the stopped run."""
        return TERMINATED if self.is_terminated else STOPPED

    def take(self, *_: Any) -> None:
        """SIGTERM came: interrupt as Ctrl-C does, which waits where an interrupt would leave half a step."""
        self.is_terminated = True
        if callable(signal.getsignal(signal.SIGINT)):
            signal.raise_signal(signal.SIGINT)
        else:
            raise KeyboardInterrupt


@contextmanager
def sigterm_as_ctrl_c() -> Iterator[Stop]:
    """Take SIGTERM as Ctrl-C for the length of a block, unless somebody else has a use for it."""
    stop = Stop()
    is_free = signal.getsignal(signal.SIGTERM) is signal.SIG_DFL
    if not is_free or threading.current_thread() is not threading.main_thread():
        yield stop
        return
    signal.signal(signal.SIGTERM, stop.take)
    try:
        yield stop
    finally:
        signal.signal(signal.SIGTERM, signal.SIG_DFL)


def wait_for_replies(actor: Actor) -> None:
    """Let the replies that are under way arrive, as long as the backend's ``grace`` allows; nothing more is sent."""
    backend = actor.backend
    if not isinstance(backend, StreamingBackend):
        return
    waiting, grace = backend.activity.under_way, backend.grace
    if waiting and grace:
        print(
            f"stopping: waiting up to {grace:g} s for {counted(waiting, 'reply', 'replies')} under way "
            "(Ctrl-C again does not wait)",
            file=sys.stderr,
        )
    backend.settle()


def command_that_goes_on(config: Any) -> str:
    """The command that was called, so that it resumes in the same folder; empty where none was called."""
    called = called_as()
    if not called:
        return ""
    further = [] if setting(config, "resume", bool, False) else ["resume=true"]
    if not any(word.startswith("output_dir=") for word in called):
        further.append(f"output_dir={setting(config, 'output_dir', str, 'outputs')}")
    return " ".join([*_program(called[0]), *(shlex.quote(word) for word in (*called[1:], *further))])


def _program(name: str) -> Sequence[str]:
    return name.split()  # such as "python -m ragen.llm_agent.agent_proxy"


def counted(count: int, one: str, many: str) -> str:
    """A number and its noun."""
    return f"{count:,} {one if count == 1 else many}"
