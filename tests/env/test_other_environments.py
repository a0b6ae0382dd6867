"""The blocks of ``docs/other_environments.md``, as they stand there, each where its package is installed."""

from __future__ import annotations

import importlib
import re
import sys
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

from ragen.tools.check import NOTHING_TO_FIX, main

PAGE = Path(__file__).resolve().parents[2] / "docs" / "other_environments.md"
BLOCKS = dict(re.findall(r"^```python\n# (\w+)\.py\n(.*?)^```", PAGE.read_text("utf-8"), re.M | re.S))


def needs(missing: bool, what: str, *marks: pytest.MarkDecorator) -> list[pytest.MarkDecorator]:
    return [pytest.mark.skipif(missing, reason=f"{what} is not installed"), *marks]


def lacks(package: str) -> bool:
    return find_spec(package) is None


ENVIRONMENTS = [
    pytest.param("sales_env:Sales", id="sql"),
    pytest.param("arena_env:Arena", id="textarena", marks=needs(lacks("textarena"), "textarena")),
    pytest.param("nethack_env:NetHack", id="nle", marks=needs(lacks("nle"), "nle")),
]


@pytest.fixture(autouse=True)
def modules(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """The blocks as modules; workers find them on the same path."""
    for name, code in BLOCKS.items():
        (tmp_path / f"{name}.py").write_text(code, "utf-8")
    monkeypatch.syspath_prepend(tmp_path)
    yield
    for name in BLOCKS:
        sys.modules.pop(name, None)


def test_every_block_of_the_page_is_tried() -> None:
    tried = {str(each.values[0]).partition(":")[0] for each in ENVIRONMENTS}
    assert tried == set(BLOCKS) and PAGE.read_text("utf-8").count("```python") == len(BLOCKS)


def made(path: str) -> Any:
    module, _, name = path.partition(":")
    return getattr(importlib.import_module(module), name)()


@pytest.mark.processes
@pytest.mark.timeout(900)
@pytest.mark.parametrize("path", ENVIRONMENTS)
def test_the_check_which_compares_with_workers_finds_nothing_to_fix(
    path: str, capsys: pytest.CaptureFixture[str]
) -> None:
    found = main([path, "--turns", "3", "--timeout", "300"])
    assert found == NOTHING_TO_FIX, capsys.readouterr().out


# What the blocks promise


def test_a_statement_only_reads_ends_and_cannot_draw_at_random() -> None:
    env = made("sales_env:Sales")
    env.reset(1)
    for statement in ("delete from sales", "attach '/tmp/x' as x", "select random()", "select current_timestamp"):
        assert "not authorized" in env.step(statement)[0], statement
    endless = "with recursive n(x) as (select 1 union all select x + 1 from n) select count(*) from n"
    assert env.step(endless)[0] == "OperationalError: interrupted"
    total = env.step("select city, sum(amount) from sales group by city")[0]
    assert str(env.total) in total
    assert env.step(f"answer[{env.total}]")[1:3] == (1.0, True)
    env.close()
