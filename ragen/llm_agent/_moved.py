"""Old paths of modules that moved into folders: they work for one more release, and warn.

``import ragen.llm_agent.configuration`` gives the very module ``ragen.llm_agent.config.loading``, so that what is
patched, pickled or compared by identity is the same under both names. ``python -m`` takes an old path too. Nothing is
imported before it is asked for.
"""

from __future__ import annotations

import sys
import warnings
from collections.abc import Callable, Collection, Sequence
from importlib import import_module
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from importlib.util import find_spec
from types import CodeType, ModuleType
from typing import Any

_PACKAGE = "ragen.llm_agent"

MOVED = {
    "configuration": "config.loading",
    "es_config": "config.environments",
    "context_settings": "config.context",
    "command_line": "config.command_line",
    "prompts": "prompting.prompts",
    "conversation": "prompting.conversation",
    "chat_template": "prompting.chat_template",
    "chat_outline": "prompting.chat_outline",
    "control_tokens": "prompting.control_tokens",
    "replies": "prompting.replies",
    "encoding": "tokens.encoding",
    "masks": "tokens.masks",
    "training_rows": "tokens.training_rows",
    "batches": "tokens.dataproto",
    "scores": "tokens.scores",
    "normalization": "tokens.normalization",
    "exchange": "tokens.sampled_tokens",
    "compare": "evaluation.compare",
    "estimates": "evaluation.statistics",
    "summary": "evaluation.tables",
    "equivalence": "testing.equivalence",
    "random_player": "testing.random_player",
    "parallel_rollout": "rollout.overlapping",
    "shared_inference": "rollout.shared_inference",
    "actor": "rollout.actor",
    "timeline": "rollout.timeline",
    "trajectories": "rollout.trajectories",
    "rollout_file": "rollout.rollout_file",
    "rollout_metrics": "rollout.metrics",
    "command": "rollout.command",
}
"""Old name in ``ragen.llm_agent`` to new name there."""


class OldPaths(MetaPathFinder, Loader):
    """Finds a module at its old path, after everything else has failed to find it."""

    def find_spec(
        self, fullname: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """A spec for an old path; None for any other name."""
        package, _, name = fullname.rpartition(".")
        if package != _PACKAGE or name not in MOVED:
            return None
        found = find_spec(_new_path(fullname))
        return ModuleSpec(fullname, self, origin=found.origin if found else None)

    def exec_module(self, module: ModuleType) -> None:
        """Put the module of the new path in the place of the one that was made for the old path."""
        new = _new_path(module.__name__)
        warnings.warn(f"{module.__name__} has moved to {new}.", DeprecationWarning, stacklevel=2)
        sys.modules[module.__name__] = import_module(new)

    def get_code(self, fullname: str) -> CodeType:
        """What ``python -m`` runs. Only a warning of ``__main__`` is shown by default, so this is one."""
        new, command = _new_path(fullname), f"python -m {fullname}"
        text = f"{command} is python -m {new} now."
        warnings.warn_explicit(text, DeprecationWarning, command, 1, module="__main__")
        found = find_spec(new)
        assert found is not None and found.loader is not None
        return found.loader.get_code(new)  # type: ignore[attr-defined]


def moved_names(old: str, new: str, names: Collection[str]) -> Callable[[str], Any]:
    """A ``__getattr__`` for a module that stays, of which some names moved.

    Args:
        old: The module's path.
        new: Where the names are now.
        names: Which they are.
    """

    def get(name: str) -> Any:
        if name not in names:
            raise AttributeError(f"module {old!r} has no attribute {name!r}")
        warnings.warn(f"{old}.{name} has moved to {new}.{name}.", DeprecationWarning, stacklevel=2)
        return getattr(import_module(new), name)

    return get


def _new_path(fullname: str) -> str:
    return f"{_PACKAGE}.{MOVED[fullname.rpartition('.')[2]]}"


sys.meta_path.append(OldPaths())
