"""How the suite is run: which test has which marker, which files are read at all, and on how many processes."""

from __future__ import annotations

import gc
import os
import signal
import sys
from collections.abc import Generator
from functools import cache
from pathlib import Path

import pytest

from support.fixtures import (  # noqa: F401 (fixtures)
    PRELOADED,
    backend,
    end_supervisors,
    few_objects_to_collect,
    kill_lanes,
    leaves_nothing,
    supervisors_that_stay,
    what_the_standard_library_keeps,
)

PRELOADED += [  # of what most environments here import
    "gymnasium",
    "ragen.env.bandit.env",
    "ragen.env.base",
    "ragen.env.countdown.env",
    "ragen.env.frozen_lake.env",
    "ragen.env.game_2048.env",
    "ragen.env.grid",
    "ragen.env.metamathqa.env",
    "ragen.env.rubikscube.env",
    "ragen.env.sokoban.env",
    "ragen.env.sudoku.env",
    "ragen.env.game",
    "ragen.env.webshop.env",
    "ragen.meta.making",
    "support.check_cases",
    "support.meta_envs",
]
os.environ.setdefault("OMP_NUM_THREADS", "1")  # torch's threads would wait for each other, spinning, beside other tests
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:  # such as where a script starts the suite in the background
    signal.signal(signal.SIGINT, signal.default_int_handler)

ROOT = Path(__file__).resolve().parent
MARKERS = {  # where it is: what it needs. A file's own entry counts, not its folder's
    "test_multiprocessing_es_manager.py": ("processes", "cold"),  # the first sees that nothing is left
    "test_parallel_envs.py": ("processes", "models", "cold"),
    "test_parallel_rollout.py": ("processes", "models", "cold"),
    "engine/tests": ("processes",),
    "engine/tests/test_ray_cluster.py": ("processes", "cluster"),
    "tests/cli/test_check.py": ("processes",),
    "tests/cli/test_crash_report.py": ("processes",),
    "tests/cage2": ("processes",),
    "tests/cage2/test_long_search.py": ("models", "slow"),
    "tests/cage2/test_order_ppo.py": ("models",),
    "tests/cage2/test_workflow_search.py": ("models",),
    "tests/turns": ("processes",),
    "tests/turns/test_collector.py": ("processes", "models"),
    "tests/turns/test_switching.py": ("processes", "models"),
    "tests/llm_agent/backends": ("models",),
    "tests/llm_agent/test_agent_proxy.py": ("models",),
    "tests/llm_agent/test_ctx_manager.py": ("models",),
    "tests/llm_agent/test_equivalence.py": ("processes",),
    "tests/llm_agent/test_evaluation.py": ("processes", "models"),
    "tests/llm_agent/test_golden_rollouts.py": ("processes",),
    "tests/llm_agent/test_generation.py": ("models",),
    "tests/llm_agent/test_inputs.py": ("processes",),
    "tests/llm_agent/test_light_start.py": ("models",),
    "tests/llm_agent/test_masks.py": ("models",),
    "tests/llm_agent/test_parallel_rollout_manager.py": ("processes", "models"),
    "tests/llm_agent/test_reference_contexts.py": ("models",),
    "tests/llm_agent/test_reference_loops.py": ("models",),
    "tests/llm_agent/test_reference_facts.py": ("processes",),
    "tests/llm_agent/test_reference_fit.py": ("models",),
    "tests/llm_agent/test_retries.py": ("processes",),
    "tests/llm_agent/test_shards.py": ("processes",),
    "tests/llm_agent/test_tokenizer.py": ("models",),
    "tests/llm_agent/test_training_tokens.py": ("models",),
    "tests/agent_loop": ("trainer",),
    "tests/agent_loop/test_env_service.py": ("processes",),
    "tests/agent_loop/test_verl_trainer.py": ("trainer", "slow"),
    "tests/agent_loop/test_worker_group.py": ("trainer", "slow"),
    "tests/meta": ("processes", "models"),
    "tests/ragen_checkout": ("processes",),
    "tests/training": ("models", "trainer"),
}
CONTRACT = (  # what no change may break: pytest -m contract
    "test_multiprocessing_es_manager.py",
    "test_parallel_envs.py",
    "test_parallel_rollout.py",
    "tests/env/test_contract.py",
    "tests/env/test_golden.py",
    "tests/env/test_openenv.py",
    "tests/env/test_rollouts.py",
    "tests/llm_agent/test_equivalence.py",
    "tests/llm_agent/test_golden_rollouts.py",
    "tests/llm_agent/test_reference_contexts.py",
    "tests/llm_agent/test_reference_facts.py",
    "engine/tests/test_exit.py",
    "engine/tests/test_faults.py",
    "engine/tests/test_hidden_state.py",
    "engine/tests/test_interrupts.py",
    "engine/tests/test_recovery.py",
    "engine/tests/test_recovery_table.py",
    "tests/llm_agent/test_retries.py",
    "tests/test_names.py",
    "tests/test_seed_statements.py",
    "tests/test_seed_texts.py",
    "engine/tests/vector/test_drop_in.py",
    "engine/tests/vector/test_equality.py",
    "engine/tests/vector/test_failures.py",
)
NAMED_ONLY = ("slow", "cluster", "install")  # the first is run by hand, the others by CI as well
FOR_TWO_PROCESSORS = 3  # processes: a third of what tests take is waiting, for workers, deadlines and answers
MOST_PROCESSES = 4  # with more, those that tests start themselves are short of processors
FEW = 3  # files; for so few, starting processes takes longer than it saves


@pytest.fixture(autouse=True)
def files_that_are_read_once() -> None:
    """Configurations are composed by the hundred, of the same few files."""
    if "omegaconf" in sys.modules:
        from support import files_read_once

        files_read_once.install()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport() -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Escape what is no UTF-8 in captured texts: pytest-xdist cannot send it, and would end the whole run."""
    report = yield
    report.sections = [(name, text.encode(errors="backslashreplace").decode()) for name, text in report.sections]
    return report


@pytest.hookimpl(trylast=True)
def pytest_sessionfinish() -> None:
    """End what stayed from test to test."""
    end_supervisors()


@cache
def markers_of(path: Path) -> tuple[str, ...]:
    """The markers of a file: its own entry's or that of the nearest folder."""
    for place in (path, *path.parents):
        if place.is_relative_to(ROOT) and (found := MARKERS.get(place.relative_to(ROOT).as_posix())):
            return found
    return ()


def pytest_configure(config: pytest.Config) -> None:
    """Leave out what takes long unless ``-m`` names it, whatever else it says."""
    gc.disable()  # until all tests are read
    for marker in NAMED_ONLY:
        wanted = config.option.markexpr
        if marker not in wanted:
            config.option.markexpr = f"({wanted}) and not {marker}" if wanted else f"not {marker}"


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """Files that ``-m "not ..."`` leaves out are not even read: torch, verl and ray take seconds to import."""
    wanted = config.option.markexpr
    if collection_path.suffix != ".py" or " or " in wanted:
        return None
    unwanted = {term.strip("() ").removeprefix("not ") for term in wanted.split(" and ") if "not " in term}
    return True if unwanted & set(markers_of(collection_path)) else None


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Give every test the markers of its place; those with models come first, so that few processes import torch.

    Each process begins with a part of its own, in this order, and takes from the ends of other parts once it is done.
    """
    for item in items:
        for marker in markers_of(item.path):
            item.add_marker(marker)
        if item.path.relative_to(ROOT).as_posix() in CONTRACT:
            item.add_marker("contract")
    items.sort(key=lambda item: not {"models", "trainer"}.intersection(markers_of(item.path)))


def pytest_collection_finish() -> None:
    """Tests and modules are there to stay: a third of the time of reading them went into looking through them."""
    gc.freeze()
    gc.enable()


def pytest_xdist_auto_num_workers(config: pytest.Config) -> int:
    """What ``-n auto`` is: half as many again as processors; where single files are asked for, none beside this one."""
    files = [argument for argument in config.args if argument.partition("::")[0].endswith(".py")]
    if len(files) == len(config.args) <= FEW:
        return 0
    processors = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return min(processors * FOR_TWO_PROCESSORS // 2, MOST_PROCESSES) if processors > 1 else 0
