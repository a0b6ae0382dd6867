"""Finds every key of the configuration in the code that reads it.

That is a call that is given a configuration and a key, or a field of settings that is made with ``key``.

A key is written as a text, an f-string or a constant. Names in f-strings are looked up: constants of the module or of
one that it imports from, variables of the function, elements of a literal that is gone through. A function that passes
its own argument on as (a part of) a key is followed to its callers. ``<mode>`` and ``<tag>`` stay as they are.
"""

from __future__ import annotations

import ast
import re
from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
KEY = re.compile(r"[a-z][\w]*(\.(\w+|<mode>|<tag>))*")
OPEN = ("mode", "tag")  # names that stand for many values
NO_SECTION = {
    "mode",
    "raw",
    "verbose",
    "report",
    "resume",
    "output_dir",
    "use_parallel_envs",
    "enable_response_mask",
}
ENVIRONMENTS = "ragen.llm_agent.config.environments"  # ENV_KEYS there are those of an entry of custom_envs
KINDS = {"int": "whole number", "float": "number", "bool": "true or false", "str": "text", "list": "list"}
_TABLE_ROW = re.compile(r"^``([\w.]+)``\s{2,}(\S.*?)\s{2,}(\S.*)$", re.M)
_YAML_LINE = re.compile(r"^( *)([\w]+):(?:\s[^#]*?)?(?:\s+#\s(.*))?$")


@dataclass(frozen=True)
class Key:
    """A key that is read.

    Attributes:
        name: Dotted; ``<mode>`` is train or val, ``<tag>`` an environment's tag.
        kind: What it is; "" where the code does not say.
        default: As the code writes it; "" where there is none, None where it is required.
        module: Where it is read.
    """

    name: str
    kind: str
    default: str | None
    module: str


@dataclass
class Module:
    """A module of the package, as far as keys are concerned."""

    name: str
    tree: ast.Module
    constants: dict[str, str] = field(default_factory=dict)
    lists: dict[str, list[str]] = field(default_factory=dict)
    imports: dict[str, tuple[str, str]] = field(default_factory=dict)


@cache
def modules() -> dict[str, Module]:
    """Every module of the package that speaks of a configuration, with its text constants."""
    found: dict[str, Module] = {}
    for path in sorted((ROOT / "ragen").rglob("*.py")):
        parts = path.relative_to(ROOT).with_suffix("").parts
        name, source = ".".join(parts[:-1] if parts[-1] == "__init__" else parts), path.read_text("utf-8")
        if "config" not in source and "import key" not in source:
            continue
        module = found[name] = Module(name, ast.parse(source))
        for node in _statements(module.tree):
            if isinstance(node, ast.ImportFrom) and node.module:
                module.imports |= {alias.asname or alias.name: (node.module, alias.name) for alias in node.names}
        for name_, value in _assigned(module.tree.body):
            if (text := resolved(value, module.constants)) is not None:
                module.constants[name_] = text
            module.lists[name_] = _elements(value, {})
    for module in found.values():
        for name, (other, original) in module.imports.items():
            if other in found and original in found[other].constants:
                module.constants.setdefault(name, found[other].constants[original])
    return found


def _statements(node: ast.AST) -> Iterator[ast.AST]:
    """As ``ast.walk``, without what is inside expressions, which is most of a tree."""
    waiting = deque([node])
    while waiting:
        yield (each := waiting.popleft())
        inner = ast.iter_child_nodes(each)
        waiting.extend(child for child in inner if isinstance(child, ast.stmt | ast.excepthandler | ast.match_case))


def _assigned(body: Iterable[ast.AST]) -> Iterator[tuple[str, ast.expr]]:
    """Names with what is assigned to them, element by element where several are at once."""
    for node in body:
        if not isinstance(node, ast.Assign):
            continue
        for target in node.targets:
            if isinstance(target, ast.Name):
                yield target.id, node.value
            elif isinstance(target, ast.Tuple) and isinstance(node.value, ast.Tuple):
                pairs = zip(target.elts, node.value.elts, strict=False)
                yield from ((name.id, value) for name, value in pairs if isinstance(name, ast.Name))


def resolved(node: ast.expr, names: Mapping[str, str]) -> str | None:
    """The text of an expression; None where it is none, or has something unknown in it."""
    if isinstance(node, ast.Constant) and isinstance(node.value, str):
        return node.value
    if isinstance(node, ast.Name | ast.Attribute):
        name = node.id if isinstance(node, ast.Name) else node.attr
        return names.get(name) or (f"<{name}>" if name in OPEN else None)
    if isinstance(node, ast.JoinedStr):
        parts = [resolved(part.value if isinstance(part, ast.FormattedValue) else part, names) for part in node.values]
        return None if None in parts else "".join(filter(None, parts))
    return None


class _Scan(ast.NodeVisitor):
    """Goes through one module."""

    def __init__(self, module: Module) -> None:
        self.module = module
        self.found: list[Key] = []
        self._names: list[dict[str, str]] = [dict(module.constants)]
        self._functions: list[ast.FunctionDef] = []
        self._passed_on: dict[str, list[tuple[str, ast.Call]]] = {}
        self._parameters: dict[str, list[str]] = {}
        self._calls: list[tuple[ast.Call, Mapping[str, str]]] = []

    def run(self) -> list[Key]:
        self.visit(self.module.tree)
        for node, names in self._calls:
            self._follow(node, names)
        return self.found

    def visit_ClassDef(self, node: ast.ClassDef) -> None:
        inner = [each for each in _statements(node) if isinstance(each, ast.Assign)]
        names = dict(self._names[-1])
        for each in inner:
            if isinstance(each.targets[0], ast.Attribute) and (text := resolved(each.value, names)) is not None:
                names[each.targets[0].attr] = text
        self._settings(node)
        self._within(node, names)

    def _settings(self, node: ast.ClassDef) -> None:
        """Fields of settings, which say where they stand."""
        names, section = self._names[-1], ""
        for field_ in node.body:
            if not isinstance(field_, ast.AnnAssign) or not isinstance(field_.target, ast.Name) or not field_.value:
                continue
            if field_.target.id == "SECTION":
                section = resolved(field_.value, names) or ""
            elif isinstance(field_.value, ast.Call) and _called(field_.value) == "key":
                default, *at = field_.value.args
                text = resolved(at[0], names) if at else f"{section}.{field_.target.id}"
                kind = re.sub(r"\W.*", "", ast.unparse(field_.annotation))
                kind = {"tuple": "list", "Path": "str"}.get(kind, kind)
                if text and KEY.fullmatch(text) and ("." in text or text in NO_SECTION):
                    self.found.append(Key(text, KINDS.get(kind, ""), _literal(default, names), self.module.name))

    def visit_FunctionDef(self, node: ast.FunctionDef) -> None:
        self._functions.append(node)
        parameters = [each.arg for each in node.args.args if each.arg not in OPEN]
        names = self._names[-1] | {name: f"{{{name}}}" for name in parameters}
        for name, value in _assigned(_statements(node)):
            if (text := resolved(value, names)) is not None:
                names[name] = text
            self.module.lists.setdefault(name, _elements(value, {}))
        self._within(node, names)
        self._functions.pop()

    def visit_GeneratorExp(self, node: ast.GeneratorExp | ast.ListComp | ast.DictComp | ast.For) -> None:
        loops = [node] if isinstance(node, ast.For) else node.generators
        names = [dict(self._names[-1])]
        for loop in loops:
            texts = _elements(loop.iter, self.module.lists)
            if isinstance(loop.target, ast.Name) and texts:
                names = [{**each, loop.target.id: text} for each in names for text in texts]
        for each in names:
            self._within(node, each)

    visit_ListComp = visit_DictComp = visit_For = visit_GeneratorExp  # type: ignore[assignment]

    def _within(self, node: ast.AST, names: dict[str, str]) -> None:
        self._names.append(names)
        self.generic_visit(node)
        self._names.pop()

    def visit_Call(self, node: ast.Call) -> None:
        self.generic_visit(node)
        self._calls.append((node, self._names[-1]))
        expression = _key_of(node)
        if expression is None:
            return
        text = resolved(expression, self._names[-1])
        if text is None:
            return
        if "{" not in text:
            self._add(text, node)
        elif self._functions:
            function = self._functions[-1]
            self._passed_on.setdefault(function.name, []).append((text, node))
            self._parameters[function.name] = [each.arg for each in function.args.args]

    def _follow(self, node: ast.Call, names: Mapping[str, str]) -> None:
        """A call of a function of this module that makes a key of what it is given."""
        name = node.func.id if isinstance(node.func, ast.Name) else ""
        for template, inner in self._passed_on.get(name, ()):
            values = dict(zip(self._parameters[name], node.args, strict=False))
            values |= {each.arg: each.value for each in node.keywords if each.arg}
            text = template
            for parameter, value in values.items():
                text = text.replace(f"{{{parameter}}}", resolved(value, names) or "{}")
            if "{" not in text:
                self._add(text, node if _default_of(node) is not None else inner)

    def _add(self, text: str, node: ast.Call) -> None:
        if KEY.fullmatch(text) and ("." in text or text in NO_SECTION):
            self.found.append(Key(text, _kind_of(node), _default_of(node), self.module.name))


def _elements(node: ast.expr, lists: Mapping[str, list[str]]) -> list[str]:
    """The texts of a literal, or of a name that stands for one."""
    if isinstance(node, ast.Name):
        return lists.get(node.id, [])
    if not isinstance(node, ast.Tuple | ast.List):
        return []
    return [each.value for each in node.elts if isinstance(each, ast.Constant) and isinstance(each.value, str)]


def _called(node: ast.Call) -> str:
    return node.func.id if isinstance(node.func, ast.Name) else getattr(node.func, "attr", "")


def _key_of(node: ast.Call) -> ast.expr | None:
    """The expression of the key, where a call reads one."""
    if len(node.args) < 2:
        return None
    first = node.args[0]
    name = first.id if isinstance(first, ast.Name) else getattr(first, "attr", "")
    return node.args[1] if name in ("config", "_config") and _called(node) != "decisive_settings" else None


def _kind_of(node: ast.Call) -> str:
    called = _called(node)
    if called == "setting":
        named = ast.unparse(node.args[2]) if len(node.args) > 2 else ""
    else:
        named = {"count": "int", "number": "float", "seconds": "float", "texts": "list", "choice": "str"}.get(
            called, ""
        )
    return KINDS.get(named, "")


def _default_of(node: ast.Call) -> str | None:
    """The default as the code writes it; None where the key has to be there."""
    place = 3 if _called(node) == "setting" else 2
    if len(node.args) <= place:
        return None if _called(node) == "setting" else ""
    return _literal(node.args[place], {})


def _literal(node: ast.expr, names: Mapping[str, str]) -> str:
    text = repr(value) if (value := resolved(node, names)) is not None else ast.unparse(node)
    return text if re.fullmatch(r"-?[\d.e_-]+|'[^']*'|None|True|False|\[\]|\{\}", text) else ""


@cache
def keys() -> dict[str, list[Key]]:
    """Every key that is read, by name, sorted; with every place that reads it."""
    found: dict[str, list[Key]] = {}
    for module in modules().values():
        for key in _Scan(module).run():
            name = re.sub(r"^(es_manager|seed)\.(train|val)\b", r"\1.<mode>", key.name)
            found.setdefault(name, []).append(replace(key, name=name))
    for name in modules()[ENVIRONMENTS].lists["ENV_KEYS"]:
        found.setdefault(key := f"custom_envs.<tag>.{name}", [Key(key, "", "", ENVIRONMENTS)])
    return dict(sorted(found.items()))


def meanings() -> dict[str, str]:
    """What keys mean: from the comments of ``config/*.yaml``, from tables in docstrings, from ``Settings``."""
    told: dict[str, str] = {}
    for module in modules().values():
        for name, default, meaning in _TABLE_ROW.findall(ast.get_docstring(module.tree) or ""):
            plain = re.sub(r":\w+:`\.?([^`]+)`", r"`\1`", f"{meaning} (default: {default})".replace("``", "`"))
            told.setdefault(name, plain)
    for path in sorted((ROOT / "config").rglob("*.yaml"), key=lambda path: (path.stem != "base", path)):
        for name, comment in comments(path.read_text("utf-8").splitlines()):
            told.setdefault(name, comment)
    return told


def comments(lines: Sequence[str]) -> Iterator[tuple[str, str]]:
    """Keys of a YAML file, each with the comment behind it; further lines of it are joined."""
    path: list[tuple[int, str]] = []
    for place, line in enumerate(lines):
        if (found := _YAML_LINE.match(line)) is None:
            continue
        indent, name, comment = len(found[1]), found[2], found[3]
        path = [*(each for each in path if each[0] < indent), (indent, name)]
        if comment:
            more = [comment.strip()]
            for further in lines[place + 1 :]:
                text = further.strip()
                if not text.startswith("# ") or len(further) - len(further.lstrip()) <= indent:
                    break
                more.append(text.removeprefix("# ").strip())
            yield ".".join(re.sub(r"^(train|val)$", "<mode>", each) for _, each in path), " ".join(more)
