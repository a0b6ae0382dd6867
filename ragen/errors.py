"""Every error class of the package, one sentence each.

A message says what happened, where (env id, tag, type, lane, pid, exit signal, turn) and what to do about it.
"""

from __future__ import annotations


class RagenError(Exception):
    """The base of every error that this package raises on purpose."""


class ConfigError(RagenError, ValueError):
    """A configuration key has a value that cannot work; nothing was built or changed."""


class UnknownEnvError(ConfigError, KeyError):
    """An environment type is not registered, or the class its path names cannot be imported."""

    __str__ = Exception.__str__  # KeyError would print the message as a quoted repr


class CacheError(RagenError, OSError):
    """A file that was built from a data set and kept on disk is damaged, or cannot be written or waited for."""


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


class DivergenceError(EnvError):
    """An environment, replayed from its seed and actions, did not give what it gave the first time."""


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


class CapsuleError(RagenError):
    """A failure capsule cannot be read, or what it needs to be played again is not here."""


class BackendError(RagenError, RuntimeError):
    """Whoever answers the prompts could not: a worker group answered too few, or no prompt of a rollout got a reply."""


class CollectError(RagenError, RuntimeError):
    """A collector's rollouts gave no row to train on, or too few groups whose rewards differ."""


class CheckpointError(RagenError, OSError):
    """A training checkpoint cannot be written or read, or is of another model than the configuration's."""


class SessionLostError(RagenError):
    """An environment is not open any more in the service that was asked for it."""


class ServiceTimeoutError(RagenError, TimeoutError):
    """An environment service had no answer in time: the request waited for its lane, or its lane was at it."""


class ServiceFullError(RagenError):
    """An environment service has as many environments open as it may, and opened no more."""


class TaskError(InputError):
    """A task of meta-RL does not exist, or the number of tasks that is asked for cannot be had."""


class WorkflowError(InputError):
    """A workflow does not name each of the five types of hosts once, or is none that can be read."""


class MissingExtraError(RagenError, ImportError):
    """An environment needs a package that is installed with one of the extras of this one, and is not there."""
