"""What becomes of the checkout's own files: three at most are replaced, and all others stay as they are.

``ragen/env/__init__.py`` imports every environment with all its packages; workers need one. So the file is read, and
written anew as a table of paths, from which a class is imported when it is first asked for. A file that is put together
in another way is kept, and what it has registered is handed over at its end.

``ragen/__init__.py`` of 2026 imports verl. What stands there moves to a module of its own, which workers do not import.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass, field

from ragen.errors import RetrofitError
from ragen.retrofit.checkout import ENVS, MANAGER, Checkout
from ragen.retrofit.travel import Travellers

CLASSES, CONFIGS = TABLES = "REGISTERED_ENVS", "REGISTERED_ENV_CONFIGS"
PACKAGE, OWN_PACKAGE = "ragen/__init__.py", "ragen/_own_init.py"
GENERATION = "ragen/llm_agent/config/generation.py"
LIGHT = "RAGEN_IMPORT_LIGHT"
"""Environment variable under which ``import ragen`` leaves out what stands in ``ragen/_own_init.py``."""

_NAMES = "register_env, replace_envs, resolve_env"


@dataclass
class Adapted:
    """What is to be put into a checkout.

    Attributes:
        files: Contents by path.
        envs: Environment types that it registers.
        notes: What the user is to know, a sentence each.
        in_main: Types that stay in the main process, with why.
        salted: Types that do so unless ``PYTHONHASHSEED`` is set, with why.
    """

    files: dict[str, bytes]
    envs: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    in_main: dict[str, str] = field(default_factory=dict)
    salted: dict[str, str] = field(default_factory=dict)


@dataclass
class _Table:
    """What an ``__init__.py`` of environments registers.

    Attributes:
        imports: The module that each imported name is of.
        entries: For each of the two tables, the name of the class of each type.
        other: Lines of statements that are not understood.
    """

    imports: dict[str, str] = field(default_factory=dict)
    entries: dict[str, dict[str, str]] = field(default_factory=lambda: {table: {} for table in TABLES})
    other: list[int] = field(default_factory=list)


def adapt(checkout: Checkout, travellers: Travellers) -> Adapted:
    """All files that are to be put into a checkout, by path.

    Raises:
        RetrofitError: A file of the checkout is not understood.
    """
    adapted = Adapted({path: source.read_bytes() for path, source in travellers.files.items()})
    adapted.files[GENERATION] = _with_generation(adapted.files[GENERATION], checkout.generation)
    _adapt_manager(checkout, adapted)
    _adapt_envs(checkout, adapted)
    _adapt_package(checkout, adapted)
    return adapted


def _with_generation(source: bytes, generation: int) -> bytes:
    """The checkout's own generation is the default, metrics as it has them, and environments with its defaults."""
    said = {
        b"\nDEFAULT_YEAR = 2025\n": b"\nDEFAULT_YEAR = %d\n" % generation,
        b"\nDEFAULT_QUIRKS = False\n": b"\nDEFAULT_QUIRKS = True\n",
        b"\nWITH_ENV_DEFAULTS = True ": b"\nWITH_ENV_DEFAULTS = False ",
    }
    for default, adapted in said.items():
        if source.count(default) != 1:
            raise RetrofitError(
                f"{GENERATION} of this package does not say {default.decode().strip()!r}; it is damaged."
            )
        source = source.replace(default, adapted)
    return source


def _adapt_manager(checkout: Checkout, adapted: Adapted) -> None:
    """The manager is ours; what importing RAGEN's does besides, it does too."""
    if "register_resolvers" in checkout.text(MANAGER) and "def register_resolvers" in checkout.text("ragen/utils.py"):
        adapted.files[MANAGER] += (
            b"\nfrom ragen.utils import register_resolvers  # noqa: E402\n\nregister_resolvers()\n"
        )


def _adapt_envs(checkout: Checkout, adapted: Adapted) -> None:
    source = checkout.text(ENVS)
    table = _read_table(ast.parse(source))
    if not all(_assigned(source, name) for name in TABLES):
        raise RetrofitError(f"{ENVS} assigns no {' and no '.join(TABLES)}; the environments cannot be found.")
    adapted.envs = sorted(table.entries[CLASSES])
    for env_type, name in table.entries[CLASSES].items():
        _examine(checkout, adapted, env_type, name, table.imports.get(name, ""))
    reasons = f"in_main={adapted.in_main!r},\n    in_main_unless_hash_seed={adapted.salted!r},\n"
    if table.other:
        adapted.notes.append(
            f"{ENVS} stays as it is, and gets a few lines at its end, since line {table.other[0]} is not known: "
            "workers import all environments when they start, not only their own."
        )
        text = _EAGER.format(source=source.rstrip("\n"), names=_NAMES, reasons=reasons)
    else:
        paths = [
            _lines({env_type: f"{table.imports[name]}:{name}" for env_type, name in table.entries[each].items()})
            for each in TABLES
        ]
        text = _LAZY.format(
            names=_NAMES, envs=paths[0], configs=paths[1], reasons=reasons, imports=_lines(table.imports)
        )
    adapted.files[ENVS] = text.encode()


def _adapt_package(checkout: Checkout, adapted: Adapted) -> None:
    source = checkout.read(PACKAGE)
    if source is None or not any(isinstance(each, ast.Import | ast.ImportFrom) for each in ast.walk(ast.parse(source))):
        return
    if checkout.read(OWN_PACKAGE) is not None:
        raise RetrofitError(f"{checkout.root} has a {OWN_PACKAGE} of its own, where {PACKAGE} was to go.")
    adapted.files[OWN_PACKAGE] = source
    adapted.files[PACKAGE] = _PACKAGE.format(light=LIGHT).encode()
    adapted.notes.append(f"what stands in {PACKAGE} moves to {OWN_PACKAGE}; workers leave it out, all else imports it.")


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
    """Whether a failing import leaves nothing behind but the lack of it."""
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


def _assigned(source: str, name: str) -> bool:
    return any(
        isinstance(node, ast.Name) and node.id == name and isinstance(node.ctx, ast.Store)
        for node in ast.walk(ast.parse(source))
    )


def _examine(checkout: Checkout, adapted: Adapted, env_type: str, name: str, module: str) -> None:
    """Look for what an episode follows from beside configuration, seed and actions, as far as source shows it."""
    path = checkout.module_path(module) if module else None
    if path is None:
        return
    folder = (checkout.root / path).parent
    for file in sorted(folder.glob("*.py")) if folder.name != "env" else [checkout.root / path]:
        where = file.relative_to(checkout.root).as_posix()
        try:
            tree = ast.parse(checkout.text(where))
        except SyntaxError:
            continue
        for line in _counters(tree, name):
            adapted.in_main.setdefault(env_type, f"{name} keeps state in its class ({where}:{line})")
        for line in _hashes(tree):
            adapted.salted.setdefault(
                env_type, f"{where}:{line} takes Python's hash of a text, of another salt each time"
            )


def _counters(tree: ast.Module, name: str) -> Iterator[int]:
    """Lines on which a method of a class changes an attribute of the class."""
    for node in ast.walk(tree):
        if isinstance(node, ast.ClassDef) and node.name == name:
            for inner in (
                each for method in node.body if isinstance(method, ast.FunctionDef) for each in ast.walk(method)
            ):
                targets = [inner.target] if isinstance(inner, ast.AugAssign) else getattr(inner, "targets", [])
                if any(isinstance(each, ast.Attribute) and _is_class(each.value, name) for each in targets):
                    yield inner.lineno  # type: ignore[attr-defined]


def _is_class(node: ast.expr, name: str) -> bool:
    return ast.unparse(node) in (name, "type(self)", "self.__class__", "cls")


def _hashes(tree: ast.Module) -> Iterator[int]:
    """Lines on which the built-in ``hash`` is called, outside of a ``__hash__``."""
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

Written by `python -m ragen.retrofit` from what stood here, which is kept and brought back by `--undo`.
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

_EAGER = """{source}

# Put here by `python -m ragen.retrofit`: what is registered above is what workers are told of.
from ragen.env.registry import {names}  # noqa: E402

REGISTERED_ENVS, REGISTERED_ENV_CONFIGS = replace_envs(
    REGISTERED_ENVS,
    REGISTERED_ENV_CONFIGS,
    {reasons})
"""

_PACKAGE = '''"""RAGEN. What stood here is in ragen/_own_init.py, which workers leave out: they need none of it.

Written by `python -m ragen.retrofit`; `--undo` brings the file back that was here.
"""

import os

if not {{"RAGEN_SUPERVISOR", "{light}"}} & os.environ.keys():
    import ragen._own_init as _own

    globals().update({{key: value for key, value in vars(_own).items() if not key.startswith("__")}})
    __version__ = getattr(_own, "__version__", "")
'''
