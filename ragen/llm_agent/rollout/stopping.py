"""Early ends of a run: by Ctrl-C, by SIGTERM, or by a limit.

SIGTERM, which batch systems send before they kill, is taken as Ctrl-C: nothing is lost, and the exit code is its own.
``limit.cost`` (dollars) and ``limit.tokens`` (of prompts and replies) are those of all runs of an output folder;
``limit.minutes`` is the time of this run.
"""

from __future__ import annotations

import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from ragen.commands import STOPPED
from ragen.config.command_line import called_as
from ragen.config.loading import as_config, override_key
from ragen.config.schema import Config, Limits
from ragen.errors import ConfigError, LimitReachedError, LimitUnmeasuredError, counted
from ragen.llm_agent.backends.base import StreamingBackend, tokens_of
from ragen.llm_agent.rollout.actor import Actor
from ragen.output import shown_words

TERMINATED = 128 + signal.SIGTERM
"""Exit code after SIGTERM."""


class Stop:
    """The way a run was stopped.

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
    """Take SIGTERM as Ctrl-C for the length of a block, unless the program has a handler of its own."""
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
            f"stopping: waiting up to {grace:g} s for {counted(waiting, 'reply', 'replies')} "
            "(press Ctrl-C again to skip)",
            file=sys.stderr,
        )
    backend.settle()


def command_that_goes_on(config: Any, changed: Mapping[str, str] | None = None) -> str:
    """The command that was called, so that it resumes in the same folder; empty where none was called.

    Secrets are shown as ``***``.

    Args:
        config: The configuration.
        changed: Keys whose values differ from those of the command that was called.
    """
    if not called_as():
        return ""
    changed, folder = dict(changed or {}), as_config(config).output_dir
    if not as_config(config).resume:
        changed["resume"] = "true"
    if f"output_dir={folder}" not in called_as():  # a run of a sweep has a folder within the one that was given
        changed["output_dir"] = folder
    called = [word for word in called_as() if override_key(word) not in changed]
    further = [f"{name}={value}" for name, value in changed.items()]
    return f"{called[0]} {shown_words([*called[1:], *further])}"


# Limits


def read_limits(config: Config) -> Limits:
    """The section ``limit``.

    Raises:
        ConfigError: Costs are limited and no price is known.
    """
    if config.limit.cost is not None and not any(price for _, price in config.actor.openai.price):
        raise ConfigError(
            "limit.cost needs prices: expected actor.openai.price.prompt and actor.openai.price.completion, in dollars "
            "per million tokens."
        )
    return config.limit


def _used(usage: Mapping[str, float], seconds: float = 0.0) -> dict[str, float]:
    """The amount that each limit bounds."""
    return {"cost": usage.get("cost", 0), "tokens": tokens_of(usage), "minutes": seconds / 60}


def raised(limits: Limits, key: str, usage: Mapping[str, float]) -> dict[str, str]:
    """The key of a limit and its value that allows as much again; empty for ``minutes``, which each run has anew.

    Args:
        limits: The limits.
        key: The key of one, such as ``limit.tokens``.
        usage: Usage of all runs.
    """
    name = key.removeprefix("limit.")
    return {} if name == "minutes" else {key: f"{getattr(limits, name) + _used(usage)[name]:.12g}"}


def watch(limits: Limits, used: Callable[[], Mapping[str, float]]) -> Callable[[], None]:
    """A check that raises as soon as a limit is reached, counted from now.

    Args:
        limits: The limits; None is no limit.
        used: Returns the usage of all runs.

    Returns:
        A function that raises :class:`~ragen.errors.LimitReachedError`, or
        :class:`~ragen.errors.LimitUnmeasuredError` if a reply has no token counts and these are limited.
    """
    start, limited = time.monotonic(), {name: limit for name, limit in limits if limit is not None}
    spending = [f"limit.{name}" for name in limited if name != "minutes"]

    def check() -> None:
        if not limited:
            return
        usage = used()
        if spending and usage.get("uncounted_replies"):
            raise LimitUnmeasuredError(
                f"{' and '.join(spending)} cannot be kept: the server sent a reply without token counts ('usage')",
                *spending,
            )
        amounts = _used(usage, time.monotonic() - start)
        for name, limit in limited.items():
            if amounts[name] >= limit:
                raise LimitReachedError(f"limit.{name}={limit:g} is reached", f"limit.{name}")

    return check
