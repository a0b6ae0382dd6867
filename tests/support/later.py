"""Packages that take seconds to import, imported by the first test that uses them and not while tests are collected.

Every process of a test run collects all tests, and only one of them runs those that need verl.
"""

from __future__ import annotations

from functools import cache
from importlib import import_module
from typing import Any


class Later:
    """Stands for modules: its attributes are those of the first that has them."""

    def __init__(self, *names: str) -> None:
        self._names = names

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):  # pytest asks all that it finds in a file for `__wrapped__`
            raise AttributeError(name)
        *others, last = self._names
        for module in map(import_module, others):
            if hasattr(module, name):
                return getattr(module, name)
        return getattr(import_module(last), name)


torch: Any = Later("torch")
verl: Any = Later("verl")
tensordict: Any = Later("tensordict")
transformers: Any = Later("transformers")
hf: Any = Later("ragen.llm_agent.backends.hf")
ppo: Any = Later("ragen.cage2.ppo")
cage2_trainer: Any = Later("ragen.cage2.trainer")
collecting: Any = Later("ragen.env.trajectory_collector")
openai: Any = Later("ragen.llm_agent.backends.openai")
training: Any = Later(
    *("ragen.training.curves", "ragen.training.player", "ragen.training.tiny_model", "ragen.training.log_probs"),
    *("ragen.training.training_batch", "ragen.training.updates", "ragen.training.warm_up"),
    *("ragen.checkpoints", "ragen.training.trainer"),  # it imports names of the others, which tests replace there
)
meta: Any = Later("ragen.meta", "ragen.meta.learner")


@cache
def shipped() -> Any:
    """The tokenizer that ships with the package, as transformers loads it."""
    from ragen.llm_agent.tokenizer import load_tokenizer

    return load_tokenizer()
