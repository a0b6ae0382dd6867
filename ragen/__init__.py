"""RAGEN-compatible environments, and rollouts that step them in worker processes.

There are three layers, and imports only point down: ``ragen.llm_agent`` (prompts, models, ``DataProto``) uses
``ragen.parallel`` (processes, time-outs, failures), which uses ``ragen.env`` (environments). Importing ``ragen`` itself
imports none of them. ``ragen.frames`` reads finished runs as data frames; see :mod:`ragen.llm_agent.evaluation.frames`.
"""

from importlib import import_module
from typing import Any

__version__ = "0.2.0"


def __getattr__(name: str) -> Any:
    if name != "frames":
        raise AttributeError(f"module 'ragen' has no attribute {name!r}")
    return import_module("ragen.llm_agent.evaluation.frames").frames
