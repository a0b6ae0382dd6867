"""How the modules may import each other: never in a circle, and only downwards.

Every import statement counts, also one in a function or under ``TYPE_CHECKING``: those hide a circle from Python, not
from a reader. That a module needs its parent packages does not count.
"""

import ast
import importlib
from functools import cache
from graphlib import CycleError, TopologicalSorter
from pathlib import Path
from types import ModuleType

import pytest

ROOT = Path(__file__).resolve().parents[1]

FLOORS = [
    {"envlanes"},
    {"envlanes.gym", "envlanes.ragen"},
    {"ragen", "ragen.errors"},
    {
        "ragen.cache",
        "ragen.commands",
        "ragen.output",
        "ragen.extras",
        "ragen.files",
        "ragen.statistics",
        "ragen.torch_threads",
        "ragen.utils",
    },
    {"ragen.checkpoints", "ragen.settings", "ragen.config", "ragen.ppo", "ragen.validity"},
    {"ragen.env", "ragen.vector"},
    {"ragen.tools"},
    {"ragen.meta", "ragen.cage2"},
    {"ragen.results"},
    {"ragen.llm_agent.prompts", "ragen.llm_agent.filtering", "ragen.llm_agent.tokenizer"},
    {"ragen.llm_agent.batches"},
    {"ragen.llm_agent.backends"},
    {"ragen.llm_agent"},
    {"ragen.turns"},
    {"ragen.llm_agent.rollout", "ragen.llm_agent.testing"},
    {"ragen.llm_agent.agent_proxy"},
    {"ragen.agent_loop"},
    {"ragen.training", "ragen.serve"},
    {"ragen.cli"},
    {"ragen.__main__"},
]
"""From the bottom up. A package or folder imports itself and the floors below it, and nothing else of ragen; the
``__init__`` of a package also names of its folders."""


def test_the_engine_knows_nothing_of_what_stands_on_it():
    core = {name: path for name, path in modules().items() if floor_of(name)[1].startswith("envlanes")}
    mentions = [name for name, path in core.items() if "ragen" in path.read_text("utf-8").lower()]
    assert [name for name in mentions if floor_of(name)[1] != "envlanes.ragen"] == []


def test_the_manager_imports_nothing_of_the_package_beside_it():
    """But for its registry, by name: it may be a checkout's."""
    inside = [module for module in modules() if floor_of(module)[1] == "envlanes.ragen"]
    names = {(module, name) for module in inside for name in names_in(modules()[module])}
    assert {(module, name) for module, name in names if name.partition(".")[0] == "ragen"} == set()


NEVER = {
    "ragen.env": {"torch", "verl", "transformers", "hydra", "omegaconf", "pydantic", "ray"},
    "envlanes": {"torch", "verl", "transformers", "hydra", "omegaconf", "pydantic"},
}
"""What workers, which import these packages, are too small for."""

FORWARDS = {
    "ragen.env.parallel_env_container": {"ragen.turns"},
    "ragen.env.environment_manager": {"ragen.turns"},
    "ragen.env.projection_functions": {"ragen.llm_agent.prompts"},
    "ragen.env.trajectory_collector": {"ragen.turns"},
    "ragen.env.environment_factory": {"ragen.turns"},
}
"""Modules that only pass on names of higher floors, as these were asked for there; nothing below imports them."""


FACE = {"ragen"}
"""The package passes names of higher floors on to users, on first access."""


@cache
def modules() -> dict[str, Path]:
    """Every module of the package, by name."""
    found = {}
    for root in (ROOT, ROOT / "engine"):
        for path in sorted(each for name in ("ragen", "envlanes") for each in (root / name).rglob("*.py")):
            parts = path.relative_to(root).with_suffix("").parts
            found[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = path
    return found


@cache
def names_in(path: Path) -> tuple[str, ...]:
    """Every dotted name that a file imports; ``from a import b`` is ``a.b``."""
    found: list[str] = []
    for node in ast.walk(ast.parse(path.read_text("utf-8"), path)):
        if isinstance(node, ast.Import):
            found += [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            assert not node.level, f"{path}:{node.lineno}: imports are absolute here"
            found += [f"{node.module}.{alias.name}" for alias in node.names]
    return tuple(found)


@cache
def imported(module: str) -> frozenset[str]:
    """The modules of the package that a module imports; of ``from a import b`` it is a if b is no module."""
    known = modules()
    targets = (name if name in known else name.rpartition(".")[0] for name in names_in(known[module]))
    return frozenset(target for target in targets if target in known and target != module)


def floor_of(module: str) -> tuple[int, str]:
    """The floor of a module, and its package there."""
    known = {each for packages in FLOORS for each in packages}
    parts = module.split(".")
    above = (".".join(parts[:end]) for end in (3, 2, 1))
    package = next((each for each in above if each in known), ".".join(parts[:2]))
    floors = [number for number, packages in enumerate(FLOORS) if package in packages]
    assert floors, f"{package} is on no floor: give it one in FLOORS"
    return floors[0], package


def circle_in(graph: dict[str, set[str]]) -> list[str] | None:
    """A circle of a graph, each module followed by one that it imports; None if there is none."""
    try:
        TopologicalSorter(graph).prepare()
    except CycleError as error:
        return error.args[1][::-1]
    return None


def test_no_import_closes_a_circle():
    graph = {module: set(imported(module)) for module in modules().keys() - FACE}
    circle = circle_in(graph)
    assert circle is None, " -> ".join(circle or [])


def test_imports_only_point_down():
    wrong = []
    for module in modules().keys() - FACE:
        floor, package = floor_of(module)
        for target in imported(module):
            below, other = floor_of(target)
            is_face = is_package(module) and target.startswith(f"{module}.")
            if other != package and below >= floor and other not in FORWARDS.get(module, ()) and not is_face:
                wrong.append(f"{module} imports {target}")
    assert wrong == []


def test_forwards_define_nothing_and_are_never_imported():
    for module in FORWARDS:
        nodes = [type(node) for node in ast.parse(modules()[module].read_text("utf-8")).body]
        assert set(nodes) <= {ast.Expr, ast.Import, ast.ImportFrom, ast.Assign, ast.If}, module
        assert not [each for each in modules() if module in imported(each)]


RECIPES = ("ragen.cage2", "ragen.meta", "ragen.training")


def is_public(name: str) -> bool:
    """Whether a dotted name is in ``__all__`` of its package; in a module of no package but ragen, all names are."""
    package, rest = "ragen", name.removeprefix("ragen.")
    while (inner := f"{package}.{rest.partition('.')[0]}") != name and is_package(inner):
        package, rest = inner, name.removeprefix(f"{inner}.")
    if package == "ragen":
        return not is_package(name) and not any(part.startswith("_") for part in name.split("."))
    return rest in getattr(importlib.import_module(package), "__all__", ())


def is_package(module: str) -> bool:
    return module in modules() and modules()[module].name == "__init__.py"


@pytest.mark.parametrize("recipe", RECIPES)
def test_recipes_import_public_names_of_the_floors_below(recipe):
    """What is inside a package may then move without them."""
    inner = []
    for module in modules():
        if not f"{module}.".startswith(f"{recipe}."):
            continue
        for name in names_in(modules()[module]):
            is_own = name == recipe or name.startswith(f"{recipe}.")
            if name.startswith("ragen.") and not is_own and not is_public(name):
                inner.append(f"{module} imports {name}")
    assert inner == []


def test_names_imported_on_first_use_are_those_that_type_checkers_see():
    wrong = []
    for package in filter(is_package, modules()):
        face, tree = importlib.import_module(package), ast.parse(modules()[package].read_text("utf-8"))
        calls = [node for node in ast.walk(tree) if isinstance(node, ast.Call) and ast.unparse(node.func) == "attach"]
        guarded = [node for node in tree.body if isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING"]
        lazily = {name: f"{package}.{where}" for call in calls for name, where in evaluated(call, face).items()}
        typed = {
            alias.name: node.module
            for guard in guarded
            for node in guard.body
            if isinstance(node, ast.ImportFrom)
            for alias in node.names
        }
        for name in getattr(face, "__all__", ()) if calls else ():
            if name not in vars(face) and not (name in lazily and lazily[name] == typed.get(name)):
                wrong.append(f"{package}.{name}")
    assert wrong == []


def evaluated(call: ast.Call, face: ModuleType) -> dict[str, str]:
    """The modules that a package gives to ``attach``, by name."""
    return eval(compile(ast.Expression(call.args[1]), face.__name__, "eval"), vars(face))


@pytest.mark.parametrize("package", NEVER)
def test_what_workers_import_stays_small(package):
    inside = (module for module in modules() if floor_of(module)[1] == package)
    found = {(module, name) for module in inside for name in names_in(modules()[module])}
    assert {(module, name) for module, name in found if name.partition(".")[0] in NEVER[package]} == set()
