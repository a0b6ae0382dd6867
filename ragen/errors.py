"""All error classes of the package, one sentence each.

A message says what happened, where (env id, tag, type, worker, pid, exit signal, turn) and what to do about it.
"""

from __future__ import annotations

import os

import envlanes
from envlanes.errors import (  # noqa: F401  (some for the floors above)
    ConfigError,
    DivergenceError,
    EnvError,
    EnvLanesError,
    EpisodeOverError,
    ForkError,
    InputError,
    LaneDiedError,
    LaneError,
    LaneStartError,
    LaneTimeoutError,
    ReturnError,
    StateError,
    StorageError,
    around_difference,
    counted,
    did_you_mean,
    in_contrast,
    in_short,
    nearest,
    shown_path,
    steady_repr,
    steady_text,
    suggestion,
    without_values,
)

DISTRIBUTION = "ragen-lanes"
"""The name of this package on an index, where ``ragen`` belongs to another project."""


def install_command(extra: str = "") -> str:
    """The command that installs this package with one of its extras, in a clone of the repository.

    Args:
        extra: The extra's name; empty for none.
    """
    extras = f"[{extra}]" if extra else ""
    return f"pip install -e '.{extras}' (in a clone of the repository)"


def described_with_place(error: BaseException) -> str:
    """An exception of a user's code for a message, such as ``ValueError: no door (my_env.py, line 12)``."""
    place = place_of(error)
    text = " ".join(steady_text(error).split())
    return f"{type(error).__name__}{f': {text}' if text else ''}{f' ({place})' if place else ''}"


def place_of(error: BaseException) -> str:
    """The line of a user's code that raised, such as ``my_env.py, line 12``; empty if it was not the user's.

    It is the innermost line that is neither of this package nor of Python's libraries or an installed package.
    """
    import sysconfig  # here, since workers import this module
    import traceback

    folders = [
        *map(os.path.dirname, (__file__, envlanes.__file__)),
        *map(sysconfig.get_path, ("stdlib", "platstdlib", "purelib", "platlib")),
    ]
    libraries = ("<", *(f"{folder}{os.sep}" for folder in folders))
    found = [each for each in traceback.extract_tb(error.__traceback__) if not each.filename.startswith(libraries)]
    return f"{shown_path(found[-1].filename)}, line {found[-1].lineno}" if found else ""


def one_line(error: BaseException) -> str:
    """An exception's message as one line of text, or its class's name if it has none."""
    return " ".join(str(error).split()) or type(error).__name__


def where_sought(module: str, error: BaseException) -> str:
    """The places where a user's module was looked for, and a cure, to follow an error message.

    Args:
        module: Its name, possibly dotted.
        error: The exception of its import; the text is empty unless there is no such module.
    """
    import sys  # here, since workers import this module
    from pathlib import Path

    name = module.partition(".")[0]
    if not (isinstance(error, ModuleNotFoundError) and error.name == name):
        return ""
    if meant := did_you_mean(name, [file.stem for file in Path().glob("*.py")]):
        return meant
    installed = f"{sys.prefix}{os.sep}", f"{sys.base_prefix}{os.sep}"
    folders = filter(os.path.isdir, dict.fromkeys(map(os.path.abspath, sys.path)))  # hooks of packages are there, too
    own = [each for each in folders if not each.startswith(installed)]
    sought = f" It was looked for in {', '.join(['the installed packages', *own])}"
    there = [
        each for place in ("..", "*") for file in ("", "/__init__") for each in Path().glob(f"{place}/{name}{file}.py")
    ]
    if not there:
        return f"{sought}: run the command in the folder of {name}, add that folder to PYTHONPATH, or install it."
    found = there[0].parent if there[0].stem == "__init__" else there[0]
    folder = found.parent.resolve()
    return f"{sought}; there is {found}: run the command in {folder}, or set PYTHONPATH={folder}."


RagenError = EnvLanesError
"""The base of every error that this package, or the engine below it, raises on purpose."""


class UnknownEnvError(ConfigError, KeyError):
    """An environment type is not registered, or the class its path names cannot be imported."""

    __str__ = Exception.__str__  # KeyError would print the message as a quoted repr


class ResourceError(RagenError, RuntimeError):
    """A resource that environments share was closed or discarded while an environment still used it."""


class CacheError(RagenError, OSError):
    """A cache on disk is damaged, or cannot be written, or another process's build did not finish in time."""


class TemplateError(ConfigError):
    """A tokenizer's chat template transforms chats in a way that prompts and loss masks cannot follow."""


class EnvsFailedError(RagenError, RuntimeError):
    """More than half of a run's trajectories failed with their environments, so the run says little about the model."""


class ContextFullError(InputError):
    """A prompt does not fit the model's context, even without its older turns; a rollout ends that episode alone."""

    def __init__(self, message: str, env_id: int = -1) -> None:
        """Store the id of the environment whose prompt it is."""
        super().__init__(message)
        self.env_id = env_id


class LevelError(EnvError):
    """No playable level was found for an environment's configuration and seed within the allowed number of tries."""


class CrashReportError(RagenError):
    """A crash report cannot be read, or something needed to replay it is missing."""


class SandboxError(EnvError):
    """A sandbox is not available, or ended or timed out for a reason unrelated to the program inside."""


class SearchError(EnvError):
    """A retrieval server could not be reached, or its reply cannot be read."""


class OpenEnvError(EnvError):
    """An OpenEnv server could not be reached, did not answer in time, or answered a call with an error."""

    def __init__(self, message: str, code: str = "") -> None:
        """Store the code.

        Args:
            message: The failure in words.
            code: The server's code, such as ``CAPACITY_REACHED``; ``LOST`` for a lost connection, ``TIMEOUT`` for no
                answer in time; empty for an unreadable answer.
        """
        super().__init__(message)
        self.code = code


class BackendError(RagenError, RuntimeError):
    """A backend did not return a reply for each prompt, or no prompt of a rollout got a reply."""


class LimitReachedError(RagenError):
    """A rollout has reached a ``limit``; its replies are kept, and it can be resumed with a higher limit."""

    def __init__(self, message: str, key: str = "") -> None:
        """Store the configuration key to raise, such as ``limit.tokens``."""
        super().__init__(message)
        self.key = key


class LimitUnmeasuredError(LimitReachedError):
    """A ``limit`` of tokens or cost cannot be kept, because a reply of the server has no token counts."""

    def __init__(self, message: str, *keys: str) -> None:
        """Store the configuration keys that have no effect, such as ``limit.tokens``."""
        super().__init__(message, *keys[:1])
        self.keys = keys


class CollectError(RagenError, RuntimeError):
    """A collector's rollouts returned no row to train on, or too few groups with differing rewards."""


class CheckpointError(RagenError, OSError):
    """A training checkpoint cannot be written or read, or belongs to another model than the configuration's."""


class SessionLostError(RagenError):
    """An environment is no longer open in the service that received the request."""


class ServiceTimeoutError(RagenError, TimeoutError):
    """An environment service did not answer in time: the request was waiting for its worker, or being worked on."""


class ServiceFullError(RagenError):
    """An environment service has reached its limit of open environments, and opened no more."""


class TaskError(InputError):
    """A meta-RL task does not exist, or the requested number of tasks is not available."""


class WorkflowError(InputError):
    """A workflow does not name each of the five types of hosts once, or cannot be parsed."""


class MissingExtraError(RagenError, ImportError):
    """An environment needs a package of one of this package's extras, and it is not installed."""
