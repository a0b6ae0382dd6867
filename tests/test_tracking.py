"""Experiment trackers: what each is given, and what is said where one is missing or refuses."""

import importlib.util
import json
import os
import sqlite3
import subprocess
import sys
from contextlib import closing
from pathlib import Path
from types import SimpleNamespace

import pytest

from ragen import tracking
from ragen.errors import ConfigError
from ragen.tracking import check_loggers, open_loggers

ROOT = Path(__file__).resolve().parents[1]
METRICS = {"val/success": 0.5, "val/pass@4": 1.0}
COLUMNS, ROWS = ["input", "score"], [["go up", 0.5], ["go left", 1.0]]


def needs(package):
    return pytest.mark.skipif(importlib.util.find_spec(package) is None, reason=f"{package} is not installed")


def fake_wandb(monkeypatch, said, name="wandb"):
    run = SimpleNamespace(log=said.append, finish=lambda: said.append("finished"))
    fake = SimpleNamespace(init=lambda **options: said.append(options) or run)
    monkeypatch.setitem(sys.modules, name, fake)
    return fake


def test_wandb_is_given_a_run_named_after_its_folder_and_steps_by_phase(tmp_path, monkeypatch):
    said = []
    fake_wandb(monkeypatch, said)
    with open_loggers(["console", "wandb"], tmp_path / "run", project="games") as loggers:
        loggers.log(METRICS, 3, "warm_up")
    assert said == [
        {"project": "games", "name": "run", "dir": str(tmp_path / "run")},
        {"warm_up/step": 3, **METRICS},
        "finished",
    ]


def test_a_tracker_that_refuses_is_named_and_the_others_are_closed(tmp_path, monkeypatch):
    said = []
    fake_wandb(monkeypatch, said, "trackio")
    fake = fake_wandb(monkeypatch, said)

    def refuse(**options):
        raise RuntimeError("No API key configured.")

    monkeypatch.setattr(fake, "init", refuse)
    with pytest.raises(ConfigError, match=r"'wandb' cannot begin a run: No API key configured\. .*WANDB_MODE"):
        open_loggers(["trackio", "wandb"], tmp_path / "run")
    assert said[-1] == "finished"


@needs("tensorboard")
@needs("torch")
def test_tensorboard_has_what_was_logged(tmp_path):
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    with open_loggers(["tensorboard"], tmp_path) as loggers:
        loggers.log(METRICS, 7)
    events = EventAccumulator(str(tmp_path / "tensorboard")).Reload()
    (scalar,) = events.Scalars("val/success")
    assert (scalar.step, scalar.value) == (7, 0.5)


@needs("mlflow")
def test_mlflow_has_what_was_logged(tmp_path, monkeypatch):
    import mlflow

    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")  # a database would need SQLAlchemy
    mlflow.set_tracking_uri((tmp_path / "mlruns").as_uri())
    with open_loggers(["mlflow"], tmp_path / "run", project="games") as loggers:
        loggers.log(METRICS, 7)
        loggers.log_table("val/generations", COLUMNS, ROWS, 7)
    (run,) = mlflow.search_runs(experiment_names=["games"], output_format="list")
    assert run.info.run_name == "run" and run.data.metrics == {"val/success": 0.5, "val/pass_4": 1.0}
    table = mlflow.artifacts.load_dict(f"{run.info.artifact_uri}/val/generations/train_000007.json")
    assert table == {"columns": COLUMNS, "data": ROWS}


@needs("trackio")
def test_trackio_has_what_was_logged(tmp_path):
    script = (
        "from pathlib import Path\n"
        "from ragen.tracking import open_loggers\n"
        f"with open_loggers(['trackio'], Path({str(tmp_path / 'run')!r}), project='games') as loggers:\n"
        f"    loggers.log({METRICS!r}, 7)\n"
        f"    loggers.log_table('val/generations', {COLUMNS!r}, {ROWS!r}, 7)\n"
    )
    folder = tmp_path / "trackio"  # which is read when the package is imported
    environment = {**os.environ, "TRACKIO_DIR": str(folder), "HF_HUB_OFFLINE": "1", "PYTHONPATH": str(ROOT)}
    subprocess.run([sys.executable, "-c", script], env=environment, check=True, timeout=100)
    with closing(sqlite3.connect(folder / "games.db")) as database:
        logged = database.execute("SELECT run_name, metrics FROM metrics ORDER BY step").fetchall()
    assert {name for name, _ in logged} == {"run"}
    metrics, table = (json.loads(text) for _, text in logged)
    assert metrics == {"train/step": 7, **METRICS}
    rows = [dict(zip(COLUMNS, row, strict=True)) for row in ROWS]
    assert table == {"train/step": 7, "val/generations": {"_type": "trackio.table", "_value": rows}}


def test_a_logger_whose_package_is_missing_is_named_with_what_to_install(monkeypatch):
    monkeypatch.setitem(tracking.PACKAGES, "wandb", "no_such_package")
    with pytest.raises(ConfigError, match=r"'trainer\.logger' has 'wandb'.*\.\[train\]"):
        check_loggers(["console", "wandb"], "trainer.logger")
    with pytest.raises(ConfigError, match="'paper'; expected some of console, tensorboard"):
        check_loggers(["paper"], "logger")
