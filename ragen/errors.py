"""Every error class of the package, one sentence each.

A message says what happened, where (env id, tag, type, lane, pid, exit signal, turn) and what to do about it.
"""

from __future__ import annotations

from typing import Any

DISTRIBUTION = "ragen-lanes"
"""What a package index knows this package by; its distribution ``ragen`` is somebody else's."""


def install_command(extra: str = "") -> str:
    """What to type for this package with one of its extras, in a clone of the repository.

    Args:
        extra: The extra's name; empty for none.
    """
    extras = f"[{extra}]" if extra else ""
    return f"pip install -e '.{extras}' (in a clone of the repository)"


def add_note(error: BaseException, text: str) -> None:
    """Add a text that is shown below an error's message; before Python 3.11 it is kept, and not shown."""
    if hasattr(error, "add_note"):
        error.add_note(text)
    else:
        error.__notes__ = [*getattr(error, "__notes__", []), text]


def in_short(value: Any, limit: int = 80) -> str:
    """A value as messages show it: its ``repr``, or the first ``limit`` characters of it and how many there are."""
    text = repr(value)
    return text if len(text) <= limit else f"{text[:limit]}... ({len(text)} characters)"


class RagenError(Exception):
    """The base of every error that this package raises on purpose."""


class ConfigError(RagenError, ValueError):
    """A configuration key has a value that cannot work; nothing was built or changed."""


class UnknownEnvError(ConfigError, KeyError):
    """An environment type is not registered, or the class its path names cannot be imported."""

    __str__ = Exception.__str__  # KeyError would print the message as a quoted repr


class CacheError(RagenError, OSError):
    """What was built and is kept on disk is damaged, or cannot be written or waited for."""


class ResourceError(RagenError, RuntimeError):
    """A resource that environments share was closed or discarded while an environment still used it."""


class TemplateError(ConfigError):
    """A tokenizer's chat template does something to chats that prompts and loss masks cannot follow."""


class InputError(RagenError, ValueError):
    """A call was given input that does not fit the manager's state; no environment was stepped."""


class StateError(RagenError, RuntimeError):
    """A method was called at a time when it cannot work, such as a step before the first reset."""


class EpisodeOverError(StateError, AssertionError):
    """An environment was stepped whose episode is over, and which nobody has reset since."""


class EnvError(RagenError, RuntimeError):
    """An environment failed in its own code; the environment's exception is the cause."""


class ReturnError(EnvError):
    """A method of an environment returned something else than it has to, such as three values instead of four."""


class DivergenceError(EnvError):
    """An environment, replayed from its seed and actions, did not give what it gave the first time."""


class ForkError(EnvError):
    """No other environment can be made to stand where this one stands or stood; none was added."""


class LaneError(RagenError, RuntimeError):
    """A worker process could not do what it was asked, for a reason outside the environment's own code."""


class LaneStartError(LaneError):
    """A worker process could not be started, or could not load what its environments need."""


class LaneDiedError(LaneError):
    """A worker process ended while it was needed: it was killed, or an environment ended it."""


class LaneTimeoutError(LaneError, TimeoutError):
    """An environment missed a deadline: its worker process was killed, or it was interrupted in the main process."""


class LevelError(EnvError):
    """No playable level was found for an environment's configuration and seed within the allowed number of tries."""


class CrashReportError(RagenError):
    """A crash report cannot be read, or what it needs to be played again is not here."""


class SandboxError(EnvError):
    """A sandbox for programs cannot be had here, or ended or took too long for a reason outside of what it ran."""


class SearchError(EnvError):
    """A retrieval server could not be reached, or its reply cannot be read."""


class OpenEnvError(EnvError):
    """An OpenEnv server could not be reached, did not answer in time, or answered a call with an error."""

    def __init__(self, message: str, code: str = "") -> None:
        """Keep the code.

        Args:
            message: What happened.
            code: The server's, such as ``CAPACITY_REACHED``; ``LOST`` without a connection, ``TIMEOUT`` without an
                answer in time; empty for an answer that cannot be read.
        """
        super().__init__(message)
        self.code = code


class BackendError(RagenError, RuntimeError):
    """Whoever answers the prompts could not: a worker group answered too few, or no prompt of a rollout got a reply."""


class LimitReachedError(RagenError):
    """A rollout has used what ``limit`` allows it; what was answered is kept, and it can go on with a higher one."""


class StorageError(RagenError, OSError):
    """A run's folder takes nothing more, such as on a full disk; what was answered is kept, and the run can go on."""


class CollectError(RagenError, RuntimeError):
    """A collector's rollouts gave no row to train on, or too few groups whose rewards differ."""


class CheckpointError(RagenError, OSError):
    """A training checkpoint cannot be written or read, or is of another model than the configuration's."""


class SessionLostError(RagenError):
    """An environment is not open any more in the service that was asked for it."""


class AmbiguousCallError(RagenError):
    """A call's answer was lost with its connection; it was played, and a client that asks again would play it twice."""


class ServiceTimeoutError(RagenError, TimeoutError):
    """An environment service had no answer in time: the request waited for its lane, or its lane was at it."""


class ServiceFullError(RagenError):
    """An environment service has as many environments open as it may, and opened no more."""


class TaskError(InputError):
    """A task of meta-RL does not exist, or the number of tasks that is asked for cannot be had."""


class WorkflowError(InputError):
    """A workflow does not name each of the five types of hosts once, or is none that can be read."""


class RetrofitError(RagenError):
    """A checkout of RAGEN cannot be retrofitted, or not be brought back; nothing in it was changed."""


class MissingExtraError(RagenError, ImportError):
    """An environment needs a package that is installed with one of the extras of this one, and is not there."""
