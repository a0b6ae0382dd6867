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
        if name.startswith("_"):  # pytest asks all that it finds in a file for `__wrapped__`
            raise AttributeError(name)
        return getattr(import_module(self._name), name)


torch: Any = Later("torch")
verl: Any = Later("verl")
tensordict: Any = Later("tensordict")
transformers: Any = Later("transformers")
hf: Any = Later("ragen.llm_agent.backends.hf")
http_client: Any = Later("ragen.llm_agent.backends.http_client")
ppo: Any = Later("ragen.cage2.ppo")
cage2_trainer: Any = Later("ragen.cage2.trainer")
cage2_training: Any = Later("ragen.cage2.trainer")
collecting: Any = Later("ragen.env.trajectory_collector")
openai: Any = Later("ragen.llm_agent.backends.openai")
manager: Any = Later("ragen.agent_loop.manager")
group_sampler: Any = Later("ragen.agent_loop.group_sampler")
v1_trainer: Any = Later("ragen.agent_loop.v1_trainer")
transfer_queue: Any = Later("transfer_queue")
