"""The model of what a turn costs, of the benchmarks."""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path
from types import ModuleType

import pytest

BENCHMARKS = Path(__file__).resolve().parents[2] / "benchmarks"
MODULES = ("cost_model", "workload")


@pytest.fixture
def benchmarks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Their folder is where modules are looked for."""
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    for name in MODULES:
        monkeypatch.delitem(sys.modules, name, raising=False)


@pytest.fixture
def model(benchmarks: None) -> ModuleType:
    import cost_model

    return cost_model


def measured(model: ModuleType, costs: object) -> list:
    """Rows as they would be if the model were the truth."""
    kinds = ({"wait": 0.01}, {"compute": 0.001}, {"wait": 1.0, "overlaps": True})
    sizes = ((32, 8), (256, 64), (1024, 64), (4096, 256))
    setups = [
        model.Setup(envs, lanes if "compute" not in kind else 4, **kind) for envs, lanes in sizes for kind in kinds
    ]
    return [model.Row(each, costs.turn_s(each), costs.main_s(each), costs.lanes_s(each)) for each in setups]


def test_constants_are_found_again_and_predict_what_was_not_fitted(model: ModuleType) -> None:
    true = model.Costs(4e-4, 6e-5, 7e-6, 1e-4, 2e-5, 3e-5)
    rows = measured(model, true)
    costs = model.fitted(model.chosen(rows))
    assert len(model.chosen(rows)) == 6
    for row in rows:
        assert costs.turn_s(row.setup) == pytest.approx(row.turn_s, rel=1e-6)


def test_no_constant_is_negative_whatever_was_measured(model: ModuleType) -> None:
    true = model.Costs(0.0, 6e-5, 7e-6, 0.0, 2e-5)
    noisy = [replace(row, main_s=row.main_s * (0.8 if row.setup.envs < 500 else 1.2)) for row in measured(model, true)]
    costs = model.fitted(noisy)
    assert min(costs.main_turn, costs.main_lane, costs.main_env, costs.lane_turn, costs.lane_env) >= 0
    assert costs.main_env > 0


def test_rows_of_one_size_are_too_few(model: ModuleType) -> None:
    rows = measured(model, model.Costs(4e-4, 6e-5, 7e-6, 1e-4, 2e-5))
    with pytest.raises(ValueError, match="measure more sizes"):
        model.fitted([row for row in rows if row.setup.envs == 32])


def test_a_turn_is_bounded_by_waits_in_a_lane_or_by_processors(model: ModuleType) -> None:
    free = model.Costs(0, 0, 0, 0, 0, oversleep=0, round_trip=0, bandwidth=float("inf"))
    one_by_one = model.Setup(100, 10, wait=0.01)
    assert free.turn_s(one_by_one) == pytest.approx(0.1) == one_by_one.ideal
    assert free.turn_s(replace(one_by_one, overlaps=True)) == pytest.approx(0.01)
    assert free.turn_s(model.Setup(100, 50, compute=0.01, cores=4)) == pytest.approx(0.25)
