"""``ragen new`` writes what works, and ``ragen list`` lists what there is."""

import importlib.util
import subprocess
import sys
from contextlib import suppress

import pytest

from ragen.cli.main import main
from ragen.config.loading import config_names, load_config
from ragen.env.registry import REGISTERED_ENVS


@pytest.mark.processes
def test_the_test_that_is_written_passes_and_the_configuration_plays(tmp_path, capsys, monkeypatch):
    assert main(["new", "my_env", "--folder", str(tmp_path)]) == 0
    assert "ragen check my_env:MyEnv" in capsys.readouterr().out
    command = [sys.executable, "-m", "pytest", "-q", "-n", "0", "test_my_env.py"]
    ran = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True)
    assert ran.returncode == 0, ran.stdout + ran.stderr
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    assert main(["rollout", "--config-name", "./my_env"]) == 0
    said = capsys.readouterr().out
    assert "MyEnv" in said and "16 trajectories" in said


def test_nothing_is_overwritten(tmp_path, capsys):
    (tmp_path / "test_my_env.py").write_text("mine")
    assert main(["new", "my_env", "--folder", str(tmp_path)]) == 2
    assert "already exists" in capsys.readouterr().err
    assert [path.name for path in tmp_path.iterdir()] == ["test_my_env.py"]


@pytest.mark.parametrize(
    ("name", "meant"),
    [
        ("my-env", "'my_env'"),
        ("class", "'class'"),
        ("1", "'1'"),
        *((name, f"{name}_env") for name in ("json", "random", "numpy", "ragen")),
    ],
)
def test_a_name_that_is_invalid_or_another_modules_is_refused(tmp_path, capsys, name, meant):
    assert main(["new", name, "--folder", str(tmp_path)]) == 2
    assert meant in capsys.readouterr().err and list(tmp_path.iterdir()) == []
    (tmp_path / "file").touch()
    assert main(["new", "my_env", "--folder", str(tmp_path / "file" / "below")]) == 2
    assert f"'{tmp_path / 'file'}'" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("given", "meant"),
    [
        ("./corridor_game.py:CorridorGame", "'corridor_game:CorridorGame'"),
        ("./other.py:CorridorGame", "./other.py"),
        ("corridor_game:CoridorGame", "'corridor_game:CorridorGame'"),
        ("coridor_game:CorridorGame", "'corridor_game'"),
        ("sokobann", "'sokoban'"),
        ("quite_another:Thing", "quite_another"),
    ],
)
def test_an_environment_that_is_not_there_is_refused_with_the_one_that_was_meant(
    given, meant, tmp_path, capsys, monkeypatch
):
    assert main(["new", "corridor_game", "--folder", str(tmp_path)]) == 0
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    assert main(["check", given]) == 2
    assert meant in capsys.readouterr().err


def test_an_environment_of_another_folder_is_refused_with_its_place(tmp_path, capsys, monkeypatch):
    assert main(["new", "far_game", "--folder", str(tmp_path / "games")]) == 0
    monkeypatch.chdir(tmp_path)
    assert main(["check", "far_game:FarGame"]) == 2
    assert str(tmp_path / "games") in capsys.readouterr().err


def test_everything_is_listed_and_cheap_environments_have_a_price(capsys):
    assert main(["list"]) == 0
    text = capsys.readouterr().out
    lines = text.splitlines()
    named = {line.split()[0]: line for line in lines if line.startswith("  ")}
    assert {*config_names(), *(name for name in REGISTERED_ENVS if ":" not in name)} <= set(named)
    assert "a turn" in named["bandit"] and "heavy" in named["code"] and "actor.backend=scripted" in named


def test_an_environment_of_an_installed_package_is_known_by_its_name(tmp_path, capsys, monkeypatch):
    assert main(["new", "plugged_in", "--folder", str(tmp_path)]) == 0
    distribution = tmp_path / "plugged_in-1.dist-info"
    distribution.mkdir()
    (distribution / "METADATA").write_text("Name: plugged-in\nVersion: 1\n")
    (distribution / "entry_points.txt").write_text("[ragen.envs]\ncorridor = plugged_in:PluggedIn\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    said = []
    for words in ["play", "--help"], ["check", "coridor"], ["check", "quite_another"], ["list", "environments"]:
        with suppress(SystemExit):
            main(words)
        said.append("".join(capsys.readouterr()))
    REGISTERED_ENVS.data.pop("corridor", None)  # where what is used by its name is kept
    assert "corridor," in said[0] and "'corridor'" in said[1] and "corridor," in said[2]
    assert "a turn" in next(line for line in said[3].splitlines() if line.startswith("  corridor "))


def test_a_configuration_that_begins_with_verls_is_composed_where_verl_is_not_installed(tmp_path, monkeypatch):
    find = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name, *_: None if name == "verl" else find(name, *_))
    lines = ["defaults: [ppo_trainer, envs]", "hydra: {searchpath: ['pkg://verl.trainer.config']}", "es_manager: {}"]
    (tmp_path / "mine.yaml").write_text("\n".join(lines))
    assert load_config("mine", [], str(tmp_path)).es_manager.max_restarts == 3
