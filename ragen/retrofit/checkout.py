"""Whether a folder is a checkout of RAGEN that is known, and of which generation; its source is read, never run."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from ragen.errors import RetrofitError
from ragen.retrofit import keeping
from ragen.retrofit.travel import KEPT, Travellers

MANAGER = "ragen/llm_agent/es_manager.py"
ENVS = "ragen/env/__init__.py"
NEEDED = (MANAGER, ENVS, "ragen/env/base.py", "ragen/utils.py", "ragen/llm_agent/ctx_manager.py")
CONFIGS = "config"

_ASKED = frozenset({"reset", "step", "get_rollout_states", "render", "close"})
_HIDDEN = "_update_cache_history", "_extract_map_valid_actions", "_handle_mm_state"
_IN_BOTH = _ASKED | {"__init__", "_init_envs", "_init_env_instances", *_HIDDEN}
METHODS = {
    2025: _IN_BOTH,
    2026: _IN_BOTH | {"_register_parallel_executors", "_shutdown_executors", "__del__"},
}
"""The methods of ``EnvStateManager``, by generation."""


@dataclass(frozen=True)
class Checkout:
    """A checkout that is known. Files that an earlier retrofit put there are not seen; those it replaced are the kept.

    Attributes:
        root: Its folder.
        generation: 2025 or 2026.
    """

    root: Path
    generation: int

    def read(self, path: str) -> bytes | None:
        """A file's bytes as they were before any retrofit; None if there is none."""
        return keeping.original(self.root, path)

    def text(self, path: str) -> str:
        """Likewise, of a file that is there."""
        return (self.read(path) or b"").decode("utf-8")

    def module_path(self, module: str) -> str | None:
        """The file of a module, a package's ``__init__.py`` included; None if the checkout has none."""
        base = module.replace(".", "/")
        return next((each for each in (f"{base}.py", f"{base}/__init__.py") if self.read(each) is not None), None)


def recognise(folder: Path, travellers: Travellers) -> Checkout:
    """See that a folder is a checkout that is known, and that what travels fits into it.

    Args:
        folder: The folder.
        travellers: What has to travel.

    Raises:
        RetrofitError: It is not; all that is in the way is named.
    """
    if not folder.is_dir():
        raise RetrofitError(f"{folder} is no folder; expected a checkout of RAGEN.")
    root = folder.resolve()
    if (root / "ragen" / "parallel").is_dir() and keeping.original(root, "ragen/parallel/engine.py") is not None:
        raise RetrofitError(f"{root} has the engine already, as a part of its own (ragen/parallel/engine.py).")
    missing = [path for path in NEEDED if keeping.original(root, path) is None]
    if missing:
        raise RetrofitError(f"{root} is no checkout of RAGEN that is known: it lacks {', '.join(missing)}.")
    checkout = Checkout(root, 0)
    trouble = [*_unreadable(checkout), *_in_the_way(checkout, travellers)]
    if not trouble:
        generation, trouble = _generation(checkout)
        checkout = Checkout(root, generation)
        trouble += _lacking(checkout, travellers)
    if trouble:
        raise RetrofitError(f"{root} cannot be retrofitted: {'; '.join(trouble)}.")
    return checkout


def _unreadable(checkout: Checkout) -> Iterator[str]:
    for path in NEEDED:
        try:
            ast.parse(checkout.read(path) or b"", path)
        except (SyntaxError, ValueError) as error:
            yield f"{path} is no Python that this interpreter reads ({error})"


def _in_the_way(checkout: Checkout, travellers: Travellers) -> Iterator[str]:
    """Files of the checkout's own where ours would go, and places that lead out of it or cannot be written."""
    for path in sorted({*travellers.files, *NEEDED}):
        place = checkout.root / path
        if path in travellers.files and path != MANAGER and checkout.read(path) is not None:
            yield f"it has a {path} of its own"
        if place.is_symlink():
            yield f"{path} is a link"
        elif checkout.root not in place.resolve().parents:
            yield f"{path} leads out of it, to {place.resolve()}"


def _generation(checkout: Checkout) -> tuple[int, list[str]]:
    methods = methods_of(ast.parse(checkout.text(MANAGER)), "EnvStateManager")
    if methods is None or not methods.keys() >= _ASKED:
        lacking = sorted(_ASKED - (methods or {}).keys())
        return 0, [f"{MANAGER} has no class EnvStateManager with {', '.join(lacking)}"]
    generation = 2026 if methods.keys() & (METHODS[2026] - METHODS[2025]) else 2025
    if (checkout.root / "ragen" / "llm_agent" / "memory").is_dir():
        generation = 2026
    more = sorted(methods.keys() - METHODS[generation])
    if more:
        lines = ", ".join(f"{name} (line {methods[name].lineno})" for name in more)
        return generation, [f"its EnvStateManager has methods that RAGEN's has not, and that would be lost: {lines}"]
    return generation, []


def _lacking(checkout: Checkout, travellers: Travellers) -> Iterator[str]:
    """What our modules import of modules that the checkout keeps, and that it has not."""
    for module, names in travellers.wanted.items():
        path = checkout.module_path(module)
        if path is None:
            yield f"it lacks the module {module}, which {next(iter(names.values()))} imports"
            continue
        if module not in KEPT[:2]:  # those get what is imported of them
            defined = names_defined(ast.parse(checkout.text(path)))
            yield from (
                f"{path} lacks {name}, which {who} imports" for name, who in names.items() if name not in defined
            )


def methods_of(tree: ast.Module, name: str) -> dict[str, ast.FunctionDef] | None:
    """The methods of a class of a module, by name; None if there is no such class."""
    for node in tree.body:
        if isinstance(node, ast.ClassDef) and node.name == name:
            return {each.name: each for each in node.body if isinstance(each, ast.FunctionDef)}
    return None


def names_defined(tree: ast.Module) -> set[str]:
    """The names that a module's top level gives: classes, functions, imports, and what is assigned."""
    names: set[str] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.ClassDef | ast.FunctionDef):
            names.add(node.name)
        elif isinstance(node, ast.Import | ast.ImportFrom):
            names.update(alias.asname or alias.name.partition(".")[0] for alias in node.names)
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            names.add(node.id)
    return names
