"""Finds the modules that a checkout needs: a few roots, and all that they import.

Imports in functions count, and so do strings that name a module, such as those that a new process runs. The checkout
keeps its own modules, which must provide the names that are imported *from* them.
"""

from __future__ import annotations

import ast
from dataclasses import dataclass
from functools import cache
from pathlib import Path

ROOTS = ("ragen.llm_agent.es_manager", "ragen.tools.check", "ragen.tools.replay", "ragen.retrofit.__main__")
"""The manager, the commands that its messages recommend, and what proves and undoes the retrofit."""

KEPT = ("ragen", "ragen.env", "ragen.env.base", "ragen.llm_agent", "ragen.utils")
"""Modules that the checkout has of its own, and that stay its own."""

LEFT_OUT = ("ragen.llm_agent.report",)
"""Packages that functions import on demand, and that a checkout does without: pictures in notebooks."""

PACKAGE = Path(__file__).resolve().parents[1]


@dataclass(frozen=True)
class Needed:
    """The modules that a checkout needs.

    Attributes:
        files: Source files of this package, by their path in the checkout.
        wanted: Names that they import from the checkout's own modules, by module, each with an importing module.
        outside: Top-level names of third-party packages that they import, at once or on demand.
    """

    files: dict[str, Path]
    wanted: dict[str, dict[str, str]]
    outside: frozenset[str]


@cache
def needed_modules(roots: tuple[str, ...] = ROOTS) -> Needed:
    """Follow the imports of the roots."""
    known = modules()
    files: dict[str, Path] = {}
    wanted: dict[str, dict[str, str]] = {}
    outside: set[str] = set()
    waiting, seen = [*roots], {*KEPT}
    while waiting:
        module = waiting.pop()
        if module in seen or f"{module}.".startswith(tuple(f"{each}." for each in LEFT_OUT)):
            continue
        seen.add(module)
        waiting += filter(None, [module.rpartition(".")[0]])
        files[known[module].relative_to(PACKAGE.parent).as_posix()] = known[module]
        for target, name in references(known[module]):
            if f"{target}.{name}" in known:
                waiting.append(f"{target}.{name}")
            elif target not in known:
                outside.add(target.partition(".")[0])
            elif name is not None and target in KEPT:
                wanted.setdefault(target, {}).setdefault(name, module)
            else:
                waiting.append(target)
    return Needed(dict(sorted(files.items())), wanted, frozenset(outside - {"ragen"}))


@cache
def modules() -> dict[str, Path]:
    """Every module of this package, by name."""
    found = {}
    for path in sorted(PACKAGE.rglob("*.py")):
        parts = path.relative_to(PACKAGE.parent).with_suffix("").parts
        found[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = path
    return found


@cache
def references(path: Path) -> tuple[tuple[str, str | None], ...]:
    """The modules and names that a file imports at run time, and the modules that it names in strings."""
    known, found = modules(), list[tuple[str, str | None]]()
    waiting: list[ast.AST] = [ast.parse(path.read_bytes(), str(path))]
    while waiting:
        node = waiting.pop()
        if isinstance(node, ast.Constant):
            if isinstance(node.value, str) and (module := node.value.partition(":")[0]) in known and "." in module:
                found.append((module, None))
        elif isinstance(node, ast.Import):
            found += [(alias.name, None) for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            of = absolute(node, path.relative_to(PACKAGE.parent))
            found += [(of, alias.name) for alias in node.names]
        elif not (isinstance(node, ast.If) and "TYPE_CHECKING" in ast.dump(node.test)):
            waiting += ast.iter_child_nodes(node)
    return tuple(found)


def absolute(node: ast.ImportFrom, path: Path) -> str:
    """The module from which a file imports names; its path is relative to the folder that holds ``ragen``."""
    package = path.parts[: -node.level] if node.level else ()
    return ".".join([*package, *([node.module] if node.module else [])])
