"""Recognizes a checkout of RAGEN, and adapts its files. Its source is parsed, never executed.

At most three files are replaced:

- ``ragen/llm_agent/es_manager.py``, by this package's.
- ``ragen/env/__init__.py``, which imports all environments with their packages, although a worker needs only one. It is
  rewritten as a table of paths whose classes are imported on first use. A file of another structure is kept, and lines
  at its end pass on its registrations.
- ``ragen/__init__.py`` of 2026, which imports verl. Its code moves to a module that workers do not import.
"""

from __future__ import annotations

import ast
import hashlib
import os
import shlex
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

from ragen.errors import RetrofitError
from ragen.retrofit import backup
from ragen.retrofit.backup import ENVS
from ragen.retrofit.imports import KEPT, Needed, absolute

MANAGER = "ragen/llm_agent/es_manager.py"
PACKAGE, OWN_PACKAGE = "ragen/__init__.py", "ragen/_own_init.py"
NEEDED = (MANAGER, ENVS, "ragen/env/base.py", "ragen/utils.py", "ragen/llm_agent/ctx_manager.py")

_MARK = b"`ragen retrofit`"  # in every replaced file

MONTHS = {2025: "September 2025", 2026: "April 2026"}

_ASKED = frozenset({"reset", "step", "get_rollout_states", "render", "close"})
REST = "the rest of the file"
_IN_BOTH = {
    "_init_envs": "21f52074",
    "_update_cache_history": "ca09c34a",
    "_extract_map_valid_actions": "2108d1cb",
    "_handle_mm_state": "154cc428",
    "render": "9bb01dd9",
}
METHODS = {
    2025: {
        **_IN_BOTH,
        "__init__": "0b092579",
        "_init_env_instances": "679e9523",
        "reset": "4d96f46b",
        "step": "a0247f59",
        "get_rollout_states": "d0efe1c5",
        "close": "074ec7ea",
        REST: "62c09e5e",
    },
    2026: {
        **_IN_BOTH,
        "__init__": "694ec461",
        "_init_env_instances": "0bead31f",
        "_register_parallel_executors": "1ce38b07",
        "reset": "41d22184",
        "step": "d1e101a2",
        "get_rollout_states": "a16286d0",
        "close": "e2745f9e",
        "_shutdown_executors": "2ce4ebf2",
        "__del__": "0eb66352",
        REST: "35c12a8a",
    },
}
"""The methods of RAGEN's ``EnvStateManager`` with their digests (see :func:`digests`), by generation."""


class Checkout:
    """A checkout, as before any retrofit.

    Attributes:
        root: Its folder.
        generation: 2025 or 2026; 0 before it is recognized.
    """

    def __init__(self, root: Path) -> None:
        """Take a folder."""
        self.root, self.generation = root, 0
        self._originals = backup.originals(root)

    def read(self, path: str) -> bytes | None:
        """A file's bytes; None if there is no such file."""
        if path in self._originals:
            return self._originals[path]
        return (self.root / path).read_bytes() if (self.root / path).is_file() else None

    def tree(self, path: str) -> ast.Module:
        """A source file's syntax tree, in any encoding that Python reads; empty if there is no such file.

        Raises:
            SyntaxError: This interpreter cannot parse it.
        """
        return ast.parse(self.read(path) or b"", path)

    def module_path(self, module: str) -> str | None:
        """The file of a module, a package's ``__init__.py`` included; None if the checkout has none."""
        base = module.replace(".", "/")
        return next((each for each in (f"{base}.py", f"{base}/__init__.py") if self.read(each) is not None), None)


def recognise(folder: Path, needed: Needed) -> Checkout:
    """Check that a folder is a known checkout, and that the needed modules fit into it.

    Args:
        folder: The folder.
        needed: The modules.

    Raises:
        RetrofitError: It is not, or they do not; the message lists all reasons.
    """
    if not folder.is_dir():
        raise RetrofitError(f"{folder} is not a folder; expected a checkout of RAGEN.")
    checkout = Checkout(folder.resolve())
    root = checkout.root
    if checkout.read("engine/envlanes/engine.py") is not None:
        raise RetrofitError(f"{root} has the engine already, as a part of its own (engine/envlanes/engine.py).")
    trouble = [*_in_the_way(checkout, needed)]
    absent = [path for path in NEEDED if checkout.read(path) is None]
    if absent:
        trouble.append(f"it lacks {', '.join(absent)}, which every known RAGEN has")
    unreadable = dict(_unreadable(checkout))
    trouble += unreadable.values()
    unknown = {*absent, *unreadable}
    if MANAGER not in unknown:
        checkout.generation, more = _generation(checkout)
        trouble += more
    if ENVS not in unknown and not names_defined(checkout.tree(ENVS)).issuperset(TABLES):
        trouble.append(f"{ENVS} assigns no {' and no '.join(TABLES)}, so that its environments cannot be found")
    trouble += _lacking(checkout, needed, unknown)
    if trouble:
        raise RetrofitError(f"{root} cannot be retrofitted: {'; '.join(trouble)}.")
    return checkout


def refuse_remains(root: Path) -> None:
    """Refuse a checkout with files of a retrofit, but without the originals.

    Raises:
        RetrofitError: It is one.
    """
    if backup.state(root) is not None:
        return
    found = [
        path for path in (MANAGER, ENVS, PACKAGE) if (root / path).is_file() and _MARK in (root / path).read_bytes()
    ]
    if not found and (root / "ragen/retrofit").is_dir() and not (root / "ragen/cli").is_dir():
        found = ["ragen/retrofit"]
    if found:
        raise RetrofitError(
            f"{root} holds what is left of a retrofit ({', '.join(found)}), but {backup.FOLDER}/ with the originals is "
            "gone, as after `git clean -x`. In a git repository, `git checkout ragen` brings the originals back, "
            "`git clean -nd ragen` lists files that were added, and `git clean -fd ragen` removes them. Otherwise "
            "unpack RAGEN again. Nothing was changed."
        )


def _unreadable(checkout: Checkout) -> Iterator[tuple[str, str]]:
    for path in (*NEEDED, PACKAGE):
        try:
            checkout.tree(path)
        except (SyntaxError, ValueError) as error:
            yield path, f"{path} is not Python that this interpreter reads ({error})"


def _in_the_way(checkout: Checkout, needed: Needed) -> Iterator[str]:
    """The checkout's own files at the paths of ours, and links, which git would replace."""
    added = [*(needed.files.keys() - {MANAGER}), OWN_PACKAGE]
    if own := sorted(path for path in added if checkout.read(path) is not None):
        yield f"it has files of its own where this package's go: {', '.join(own)}"
    paths = {each for path in (*added, *NEEDED, PACKAGE) for each in (Path(path), *Path(path).parents)}
    for path in sorted(paths):
        if (checkout.root / path).is_symlink():
            yield f"{path} is a link, to {os.readlink(checkout.root / path)}"


def _generation(checkout: Checkout) -> tuple[int, list[str]]:
    methods = methods_of(checkout.tree(MANAGER), "EnvStateManager")
    if methods is None or not methods.keys() >= _ASKED:
        lacking = sorted(_ASKED - (methods or {}).keys())
        return 0, [f"{MANAGER} has no class EnvStateManager with {', '.join(lacking)}"]
    generation = 2026 if methods.keys() & (METHODS[2026].keys() - METHODS[2025].keys()) else 2025
    if (checkout.root / "ragen" / "llm_agent" / "memory").is_dir():
        generation = 2026
    more = sorted(methods.keys() - METHODS[generation].keys())
    if more:
        lines = ", ".join(f"{name} (line {methods[name].lineno})" for name in more)
        return generation, [f"its EnvStateManager has methods that RAGEN's has not, and that would be lost: {lines}"]
    return generation, []


def digests(source: bytes) -> dict[str, str]:
    """Digests of the methods of a file's ``EnvStateManager`` and of the rest; blanks at line ends do not matter."""
    lines = source.removeprefix(b"\xef\xbb\xbf").splitlines()
    parts = {REST: lines}
    for name, method in (methods_of(ast.parse(source), "EnvStateManager") or {}).items():
        first, last = method.lineno - 1, method.end_lineno or method.lineno
        parts[name] = lines[first:last]
        lines[first:last] = [b""] * (last - first)
    texts = {name: b"\n".join(filter(None, map(bytes.rstrip, part))) for name, part in parts.items()}
    return {name: hashlib.sha256(text).hexdigest()[:8] for name, text in texts.items()}


def edits_of_manager(checkout: Checkout) -> str:
    """A sentence about the edits of a checkout's manager, which is replaced; empty if it is RAGEN's own."""
    generation, _ = _generation(checkout)
    found = digests(checkout.read(MANAGER) or b"")
    edited = [name for name, digest in METHODS[generation].items() if found.get(name) != digest]
    if not edited:
        return ""
    return (
        f"{MANAGER} differs from RAGEN's of {MONTHS[generation]} in {', '.join(edited)}: its changes have no effect "
        "while the retrofit is installed; --undo brings them back"
    )


def _lacking(checkout: Checkout, needed: Needed, unknown: set[str]) -> Iterator[str]:
    """Names that our modules import from the checkout's modules, but that these lack; those of unknown files aside."""
    for module, names in needed.wanted.items():
        path = checkout.module_path(module)
        if {path, module.replace(".", "/") + ".py"} & unknown:
            continue
        if path is None:
            yield f"it lacks the module {module}, which {next(iter(names.values()))} imports"
            continue
        if module not in KEPT[:2]:  # those get what is imported of them
            defined = names_defined(checkout.tree(path))
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
    """The names that a module's top level defines: classes, functions, imports and variables."""
    names: set[str] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.ClassDef | ast.FunctionDef):
            names.add(node.name)
        elif isinstance(node, ast.Import | ast.ImportFrom):
            names.update(alias.asname or alias.name.partition(".")[0] for alias in node.names)
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            names.add(node.id)
    return names


# What its files become

CLASSES = "REGISTERED_ENVS"
TABLES = CLASSES, "REGISTERED_ENV_CONFIGS"
LIGHT = "RAGEN_IMPORT_LIGHT"
"""Environment variable under which ``import ragen`` leaves out what stands in ``ragen/_own_init.py``."""

_NAMES = "register_env, replace_envs, resolve_env"


@dataclass
class Adapted:
    """The files to install in a checkout.

    Attributes:
        files: Contents by path.
        envs: Environment types that the checkout registers.
        notes: Notes for the user, one sentence each.
        in_main: Types that stay in the main process, with the reasons.
        salted: Types that do so unless ``PYTHONHASHSEED`` is set, with the reasons.
    """

    files: dict[str, bytes]
    envs: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    in_main: dict[str, str] = field(default_factory=dict)
    salted: dict[str, str] = field(default_factory=dict)


@dataclass
class _Table:
    """The registrations of an ``__init__.py`` of environments.

    Attributes:
        imports: The module of each imported name.
        entries: For both tables, the class name of each type.
        other: Lines of other statements.
    """

    imports: dict[str, str] = field(default_factory=dict)
    entries: dict[str, dict[str, str]] = field(default_factory=lambda: {table: {} for table in TABLES})
    other: list[int] = field(default_factory=list)


def adapt(checkout: Checkout, needed: Needed) -> Adapted:
    """All files to install in a checkout, by path."""
    adapted = Adapted({path: source.read_bytes() for path, source in needed.files.items()})
    adapted.files[MANAGER] += _MANAGER.encode()
    if b"register_resolvers" in (checkout.read(MANAGER) or b"") and "register_resolvers" in names_defined(
        checkout.tree("ragen/utils.py")
    ):
        adapted.files[MANAGER] += _RESOLVERS
    _adapt_envs(checkout, adapted)
    _adapt_package(checkout, adapted)
    return adapted


def _adapt_envs(checkout: Checkout, adapted: Adapted) -> None:
    tree = checkout.tree(ENVS)
    table = _read_table(tree)
    adapted.envs = sorted(table.entries[CLASSES])
    for env_type, name in table.entries[CLASSES].items():
        _examine(checkout, adapted, env_type, name, table.imports.get(name, ""))
    reasons = f"in_main={adapted.in_main!r},\n    in_main_unless_hash_seed={adapted.salted!r},\n"
    filled = {"how_to_add": backup.HOW_TO_ADD, "names": _NAMES, "reasons": reasons}
    if table.other:
        adapted.notes.append(
            f"{ENVS} stays as it is, and gets a few lines at its end, since line {table.other[0]} is not known: "
            "workers import all environments when they start, not only their own."
        )
        adapted.files[ENVS] = (checkout.read(ENVS) or b"") + _EAGER.format(**filled).encode()
    else:
        paths = [
            _lines({env_type: f"{table.imports[name]}:{name}" for env_type, name in table.entries[each].items()})
            for each in TABLES
        ]
        lazy = _LAZY.format(envs=paths[0], configs=paths[1], imports=_lines(table.imports), **filled)
        adapted.files[ENVS] = lazy.encode()


def refuse_new_dependences(root: Path) -> None:
    """Refuse a retrofitted checkout in which further types depend on their process since: workers would play them.

    Raises:
        RetrofitError: It is one.
    """
    checkout, adapted = Checkout(root), Adapted({})
    _adapt_envs(checkout, adapted)
    found = {"in_main": adapted.in_main, "in_main_unless_hash_seed": adapted.salted}
    placed = ast.walk(ast.parse((root / ENVS).read_bytes()))
    known = {
        each.arg: ast.literal_eval(each.value) for each in placed if isinstance(each, ast.keyword) and each.arg in found
    }
    new = [f"{t}: {why}" for where, reasons in found.items() for t, why in reasons.items() if t not in known[where]]
    if new:
        raise RetrofitError(
            f"edited since the retrofit, and would be played by workers: {'; '.join(new)}. `ragen retrofit "
            f"{shlex.quote(str(root))}` looks at all environments anew, and keeps those in the main process."
        )


def _adapt_package(checkout: Checkout, adapted: Adapted) -> None:
    source = checkout.read(PACKAGE)
    if source is None or not any(
        isinstance(each, ast.Import | ast.ImportFrom) for each in ast.walk(checkout.tree(PACKAGE))
    ):
        return
    adapted.files[OWN_PACKAGE] = source
    adapted.files[PACKAGE] = _PACKAGE.format(light=LIGHT).encode()
    adapted.notes.append(f"the code in {PACKAGE} moves to {OWN_PACKAGE}, which every process except workers imports.")


def _read_table(tree: ast.Module) -> _Table:
    table = _Table()
    for statement in tree.body:
        if isinstance(statement, ast.Try) and _passes(statement):
            for inner in statement.body:
                _read_statement(inner, table)
        else:
            _read_statement(statement, table)
    for entries in table.entries.values():
        if any(name not in table.imports for name in entries.values()):
            table.other.append(1)
    return table


def _passes(statement: ast.Try) -> bool:
    """Whether a failed import is simply skipped."""
    handled = all(isinstance(each, ast.Pass) for handler in statement.handlers for each in handler.body)
    return handled and not statement.orelse and not statement.finalbody


def _read_statement(statement: ast.stmt, table: _Table) -> None:
    match statement:
        case ast.Expr(value=ast.Constant()) | ast.Pass():
            return
        case ast.ImportFrom(module=str(module), level=level) if level == 1 or module.startswith("ragen.env."):
            of = f"ragen.env.{module}" if level else module
            table.imports |= {alias.asname or alias.name: of for alias in statement.names}
            if not any(alias.asname or alias.name == "*" for alias in statement.names):
                return
        case ast.Assign(targets=[ast.Name(id=name)], value=ast.Dict(keys=keys, values=values)) if name in TABLES:
            if all(_is_entry(key, value) for key, value in zip(keys, values, strict=True)):
                table.entries[name] |= {k.value: v.id for k, v in zip(keys, values, strict=True)}  # type: ignore
                return
        case ast.Assign(
            targets=[ast.Subscript(value=ast.Name(id=name), slice=ast.Constant(value=str(key)))],
            value=ast.Name(id=of),
        ) if name in TABLES:
            table.entries[name][key] = of
            return
        case ast.Assign(targets=[ast.Name(id="__all__")]):
            return
    table.other.append(statement.lineno)


def _is_entry(key: ast.expr | None, value: ast.expr) -> bool:
    return isinstance(key, ast.Constant) and isinstance(key.value, str) and isinstance(value, ast.Name)


def _examine(checkout: Checkout, adapted: Adapted, env_type: str, name: str, module: str) -> None:
    """Look in the source for anything besides configuration, seed and actions that episodes depend on."""
    names, trees = _family(checkout, module, name)
    for where, tree in trees.items():
        for line in _counters(tree, names):
            adapted.in_main.setdefault(env_type, f"{name} keeps state in its class ({where}:{line})")
        for line in _hashes(tree):
            adapted.salted.setdefault(
                env_type, f"{where}:{line} hashes a string; Python salts such hashes in each process"
            )


def _family(checkout: Checkout, module: str, name: str) -> tuple[set[str], dict[str, ast.Module]]:
    """The names of a class and its bases in the checkout, and by path the files in which they may be."""
    trees: dict[str, ast.Module] = {}
    found: list[tuple[str, str]] = []  # modules, and names in them
    waiting = [(module, name)]
    while waiting:
        module, name = one = waiting.pop(0)
        if one in found or not checkout.module_path(module):
            continue
        found.append(one)
        sources = _sources(checkout, module)
        trees |= sources
        for where, tree in sources.items():
            imported = _imported(tree, where)
            waiting += [imported[name]] if name in imported else []
            for node in ast.walk(tree):
                if isinstance(node, ast.ClassDef) and node.name == name:
                    waiting += [_meant(ast.unparse(base), module, imported) for base in node.bases]
    return {each for _, each in found}, trees


def _sources(checkout: Checkout, module: str) -> dict[str, ast.Module]:
    """By path, the files of a module's folder, since its classes may be in any; of ``ragen/env`` the module's own."""
    path = checkout.root / (checkout.module_path(module) or "")
    trees = {}
    for file in sorted(path.parent.glob("*.py")) if path.parent.name != "env" else [path]:
        with suppress(SyntaxError, ValueError):
            where = file.relative_to(checkout.root).as_posix()
            trees[where] = checkout.tree(where)
    return trees


def _imported(tree: ast.Module, where: str) -> dict[str, tuple[str, str]]:
    """What a file imports: by its name there, the module and the name in it, which is empty for a module."""
    found: dict[str, tuple[str, str]] = {}
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            found |= {alias.asname or alias.name: (alias.name, "") for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            of = absolute(node, Path(where))
            found |= {alias.asname or alias.name: (of, alias.name) for alias in node.names}
    return found


def _meant(base: str, module: str, imported: dict[str, tuple[str, str]]) -> tuple[str, str]:
    """The module and the name of a base class, as a class of a module names it."""
    prefix, _, name = base.rpartition(".")
    if prefix:
        return ".".join(filter(None, imported.get(prefix, (prefix, "")))), name
    return imported.get(base, (module, base))


_FILLS = frozenset({"add", "append", "extend", "insert", "pop", "popleft", "setdefault", "update"})


def _counters(tree: ast.Module, names: set[str]) -> Iterator[int]:
    """Lines in which a method of one of these classes changes a class attribute, or the list, dict or set of one."""
    for node in ast.walk(tree):
        if isinstance(node, ast.ClassDef) and node.name in names:
            for inner in (
                each for method in node.body if isinstance(method, ast.FunctionDef) for each in ast.walk(method)
            ):
                targets = [inner.target] if isinstance(inner, ast.AugAssign) else getattr(inner, "targets", [])
                targets = [each.value if isinstance(each, ast.Subscript) else each for each in targets]
                if isinstance(inner, ast.Call) and isinstance(inner.func, ast.Attribute) and inner.func.attr in _FILLS:
                    targets = [inner.func.value]
                if any(isinstance(each, ast.Attribute) and _is_class(each.value, names) for each in targets):
                    yield inner.lineno  # type: ignore[attr-defined]


def _is_class(node: ast.expr, names: set[str]) -> bool:
    return ast.unparse(node) in {*names, "type(self)", "self.__class__", "cls"}


def _hashes(tree: ast.Module) -> Iterator[int]:
    """Lines in which the built-in ``hash`` is called, outside of a ``__hash__``."""
    inside = {
        id(each)
        for f in ast.walk(tree)
        if isinstance(f, ast.FunctionDef) and f.name == "__hash__"
        for each in ast.walk(f)
    }
    for node in ast.walk(tree):
        if (
            isinstance(node, ast.Call)
            and isinstance(node.func, ast.Name)
            and node.func.id == "hash"
            and id(node) not in inside
        ):
            yield node.lineno


def _lines(table: dict[str, str]) -> str:
    return "{\n" + "".join(f"        {key!r}: {value!r},\n" for key, value in table.items()) + "    }"


_LAZY = '''"""The checkout's environments, each imported when it is first asked for.

Written by `ragen retrofit` from what stood here, which is kept and brought back by `--undo`.
{how_to_add}.
"""

from ragen.env.registry import REGISTERED_ENV_CONFIGS, REGISTERED_ENVS, {names}

replace_envs(
    {envs},
    {configs},
    {reasons})

_MODULES = (
    {imports}
)


def __getattr__(name):
    """Import a class that this package has always given."""
    if name not in _MODULES:
        raise AttributeError(f"module {{__name__!r}} has no attribute {{name!r}}")
    from importlib import import_module

    return getattr(import_module(_MODULES[name]), name)
'''

_EAGER = """

# Put here by `ragen retrofit`: workers know what is registered above.
# {how_to_add}.
from ragen.env.registry import {names}  # noqa: E402

REGISTERED_ENVS, REGISTERED_ENV_CONFIGS = replace_envs(
    REGISTERED_ENVS,
    REGISTERED_ENV_CONFIGS,
    {reasons})
"""

_MANAGER = """
# Added by `ragen retrofit`.
if __name__ == "__main__":
    import sys

    print("error: RAGEN's demonstration is unavailable until --undo; run `python -m ragen.retrofit .`", file=sys.stderr)
    sys.exit(2)
"""

_RESOLVERS = b"""
from ragen.utils import register_resolvers  # noqa: E402

register_resolvers()
"""

_PACKAGE = '''"""RAGEN. What stood here is in ragen/_own_init.py, which workers leave out: they need none of it.

Written by `ragen retrofit`; `--undo` brings the file back that was here.
"""

import os
import sys

if "ragen.retrofit" not in sys.orig_argv and not {{"ENVLANES_SUPERVISOR", "{light}"}} & os.environ.keys():
    import ragen._own_init as _own

    globals().update({{key: value for key, value in vars(_own).items() if not key.startswith("__")}})
    __version__ = getattr(_own, "__version__", "")
'''
