"""Which modules have to travel: those that a few roots import, followed from file to file.

Every import statement counts, also one in a function, and so does a text that is the name of a module (what a process
is told to run). The checkout has some modules of its own: those stay, and what is imported *of* them is asked of them.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path

ROOTS = ("ragen.llm_agent.es_manager", "ragen.tools.check", "ragen.tools.replay", "ragen.retrofit.__main__")
"""The manager; what its messages tell people to run; and what proves it, and takes it back."""

KEPT = ("ragen", "ragen.env", "ragen.env.base", "ragen.llm_agent", "ragen.utils")
"""Modules that the checkout has of its own, and that stay its own."""

PACKAGE = Path(__file__).resolve().parents[1]


@dataclass(frozen=True)
class Travellers:
    """What has to be in a checkout.

    Attributes:
        files: Source files of this package, by their path in the checkout.
        wanted: Names that they import of modules that the checkout keeps, by module; each with who wants it.
        outside: Top-level names of packages of others that they import, at once or when something is asked for.
    """

    files: dict[str, Path]
    wanted: dict[str, dict[str, str]]
    outside: frozenset[str]


@cache
def travellers(roots: tuple[str, ...] = ROOTS, kept: tuple[str, ...] = KEPT) -> Travellers:
    """Follow the imports of the roots."""
    known = modules()
    files: dict[str, Path] = {}
    wanted: dict[str, dict[str, str]] = {}
    outside: set[str] = set()
    waiting = [name for root in roots for name in _with_packages(root)]
    seen: set[str] = set()
    while waiting:
        module = waiting.pop()
        if module in seen or module in kept:
            continue
        seen.add(module)
        files[known[module].relative_to(PACKAGE.parent).as_posix()] = known[module]
        for target, name in references(known[module], known):
            if target not in known:
                outside.add(target.partition(".")[0])
                continue
            if name is not None and f"{target}.{name}" in known:
                waiting += _with_packages(f"{target}.{name}")
                continue
            if name is not None and target in kept:
                wanted.setdefault(target, {}).setdefault(name, module)
            waiting += _with_packages(target)
    return Travellers(dict(sorted(files.items())), wanted, frozenset(outside - {"ragen"}))


@cache
def modules() -> dict[str, Path]:
    """Every module of this package, by name."""
    found = {}
    for path in sorted(PACKAGE.rglob("*.py")):
        parts = path.relative_to(PACKAGE.parent).with_suffix("").parts
        found[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = path
    return found


def references(path: Path, known: dict[str, Path]) -> Iterator[tuple[str, str | None]]:
    """What a file imports, as module and name; and the modules that it names in texts."""
    for node in ast.walk(ast.parse(path.read_text("utf-8"), str(path))):
        if isinstance(node, ast.Import):
            yield from ((alias.name, None) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            yield from ((str(node.module), alias.name) for alias in node.names)
        elif isinstance(node, ast.Constant) and isinstance(node.value, str) and "." in node.value:
            module = node.value.partition(":")[0]
            if module in known:
                yield module, None


def _with_packages(module: str) -> list[str]:
    parts = module.split(".")
    return [".".join(parts[:end]) for end in range(1, len(parts) + 1)]
