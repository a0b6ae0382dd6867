"""Packages that take seconds to import, imported by the first test that uses them and not while tests are collected.

Every process of a test run collects all tests, and only one of them runs those that need verl.
"""

from __future__ import annotations

from importlib import import_module
from typing import Any


class Later:
    """Stands for a module: its attributes are the module's."""

    def __init__(self, name: str) -> None:
        self._name = name

    def __getattr__(self, name: str) -> Any:
        return getattr(import_module(self._name), name)


verl: Any = Later("verl")
tensordict: Any = Later("tensordict")
group_sampler: Any = Later("ragen.agent_loop.group_sampler")
loss_scaling: Any = Later("ragen.agent_loop.loss_scaling")
transfer_queue: Any = Later("transfer_queue")
