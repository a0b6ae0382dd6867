"""``benchmarks/bench_heavy.py``, as the README calls it."""

import re
import sys
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path

import pytest

FILE = Path(__file__).resolve().parents[1] / "benchmarks/bench_heavy.py"


@pytest.fixture
def bench(monkeypatch):
    """The benchmark, with small environments, where matplotlib is not installed."""
    spec = spec_from_file_location("bench_heavy", FILE)
    module = module_from_spec(spec)
    monkeypatch.setitem(sys.modules, "bench_heavy", module)
    spec.loader.exec_module(module)
    module.ENVIRONMENTS = {"search": module.Heavy("search", module.query, {"entities": 60, "max_steps": 99}, envs=4)}
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    return module


def call(bench, monkeypatch, *words):
    monkeypatch.setattr(sys, "argv", ["bench_heavy.py", *words])
    return bench.main()


@pytest.mark.processes
def test_it_measures_and_prints_tables_without_matplotlib_and_says_that_its_kills_are_intended(
    bench, monkeypatch, capsys
):
    assert call(bench, monkeypatch, "--turns", "3", "--seconds", "0") == 0
    out = capsys.readouterr().out
    assert "search: measured; now a worker is killed on purpose before each of 3 turns" in out
    assert "search: all rollouts are equal" in out
    assert out.count("| `search` | 4 |") == 1
    assert re.search(r"search: beside it, (1 process|2 processes) computed \d\.\d\d times as fast as one", out)


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (("--png", "heavy.png"), "--png needs matplotlib, which is not installed: pip install matplotlib"),
        (("--only", "search,nope"), "there is no environment 'nope'; expected some of search"),
        (("--envs", "3"), "--envs is 3; expected a multiple of 4"),
        (("--envs", "0"), "--envs is 0; expected a multiple of 4"),
        (("--workers", "0"), "--workers is 0; expected at least 1"),
        (("--turns", "0"), "--turns is 0; expected at least 1"),
    ],
)
def test_it_refuses_what_it_cannot_do_before_it_measures(bench, monkeypatch, capsys, words, says):
    monkeypatch.setattr(bench, "measure", lambda *_: pytest.fail("it measured"))
    with pytest.raises(SystemExit) as end:
        call(bench, monkeypatch, *words)
    assert end.value.code == 2
    seen = capsys.readouterr()
    assert says in seen.err and not seen.out
