"""The equivalence suite as a script and for pytest: ``python test_multiprocessing_es_manager.py`` is ``ragen suite``.

pytest collects the same checks, a test for each; but the tags of a type share one, in one manager.
"""

import sys
from typing import Any

import psutil

from ragen.cli.main import main
from ragen.env import resolve_env
from ragen.llm_agent.testing.suite import (
    MIXED,
    Check,
    Size,
    checks_of_disturbances,
    playable,
    run,
    shipped_envs,
)


def pytest_generate_tests(metafunc: Any) -> None:
    """Give pytest the checks: all of them for one kind of workers, disturbances for the other."""
    if "check" in metafunc.fixturenames:
        disturbed = checks_of_disturbances({tag: shipped_envs()[tag] for tag in MIXED})
        checks = [*checks_of_types(), *disturbed]
        cases = {f"process-{check}": (check, "process") for check in checks}
        cases |= {f"executor-{check}": (check, "executor") for check in disturbed}
        metafunc.parametrize(("check", "backend"), cases.values(), ids=cases)


def checks_of_types() -> list[Check]:
    """One check for each type of environment, with all its tags: starting workers costs more than playing most."""
    types: dict[str, dict[str, Any]] = {}
    for tag, entry in playable(shipped_envs()).items():
        types.setdefault(entry["env_type"], {})[tag] = entry
    return [Check(" ".join(tags), tags) for tags in types.values()]


def test_workers_give_the_rollouts_of_the_main_process(check: Check, backend: str) -> None:
    """The check, under pytest."""
    before = _children()
    size = Size(backend=backend, seeds=1, groups=1, workers=1) if _is_heavy(check) else Size(backend=backend)
    assert run(check, size).difference == ""
    assert _children() <= before


def _is_heavy(check: Check) -> bool:
    """Whether environments have programs of their own, a browser or a sandbox: fewer say as much."""
    return all(resolve_env(entry["env_type"])[0].cost_hint == "heavy" for entry in check.custom_envs.values())


def _children() -> set[psutil.Process]:
    """All descendants but those that the standard library keeps until the program ends."""
    kept = ("multiprocessing.resource_tracker", "multiprocessing.forkserver")
    found = psutil.Process().children(recursive=True)
    return {process for process in found if not any(name in " ".join(process.cmdline()) for name in kept)}


if __name__ == "__main__":
    sys.exit(main(["suite", *sys.argv[1:]]))
