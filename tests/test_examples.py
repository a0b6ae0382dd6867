"""Every example runs as its page says."""

import json
import os
import subprocess
import sys
import tomllib
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path

import pytest

from ragen.config.loading import load_config, plain_sections
from ragen.llm_agent.environments import read_config
from ragen.llm_agent.prompts.settings import ContextSettings
from ragen.llm_agent.prompts.templates import PromptTemplate
from support.chat_server import chat_server, say
from support.small_training import SMALL

ROOT = Path(__file__).resolve().parents[1]
EXAMPLES = ROOT / "examples"


def run(*command, cwd, path=ROOT):
    env = {**os.environ, "PYTHONPATH": str(path)}
    ran = subprocess.run(command, cwd=cwd, env=env, capture_output=True, text=True, timeout=110)
    assert ran.returncode == 0, ran.stdout + ran.stderr
    return ran.stdout


def example(name):
    """An example's module."""
    spec = spec_from_file_location(name, EXAMPLES / f"{name}.py")
    module = module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def plugin(tmp_path_factory):
    """The folder into which the plug-in was installed, as ``pip`` installs it."""
    folder = tmp_path_factory.mktemp("plugin")
    source = folder / "source"
    source.mkdir()
    for path in (EXAMPLES / "number_hunt").rglob("*"):
        if path.is_file() and path.suffix in (".py", ".toml"):
            target = source / path.relative_to(EXAMPLES / "number_hunt")
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_bytes(path.read_bytes())
    options = ("--no-deps", "--no-build-isolation", "--disable-pip-version-check", "--no-index")
    run(
        sys.executable,
        "-m",
        "pip",
        "install",
        "-q",
        *options,
        "--target",
        str(folder / "site"),
        str(source),
        cwd=folder,
    )
    return folder / "site"


def test_an_installed_plug_in_is_played_by_its_name_in_workers(plugin, tmp_path):
    folder = ("--config-path", str(EXAMPLES / "number_hunt/config"), "--config-name", "hunt")
    keys = ("es_manager.use_multiprocessing=true", "es_manager.max_workers=2", f"output_dir={tmp_path}")
    path = f"{plugin}{os.pathsep}{ROOT}"
    told = run(sys.executable, "-m", "ragen", "rollout", "-v", *folder, *keys, cwd=tmp_path, path=path)
    rows = [json.loads(line) for line in (tmp_path / "rollouts.jsonl").read_text("utf-8").splitlines()]
    assert len(rows) == 8 and {row["tag"] for row in rows} == {"NumberHunt"}
    assert "number_hunt" in told and "worker 0" in told
    shown = [message["content"] for message in rows[0]["messages"] if message["role"] == "user"]
    assert "A number from 1 to 20 is hidden." in shown[0] and " is " in shown[1]


def test_the_plug_in_has_nothing_to_fix(plugin, tmp_path):
    path = f"{plugin}{os.pathsep}{ROOT}"
    told = run(sys.executable, "-m", "ragen", "check", "number_hunt", cwd=tmp_path, path=path)
    assert "FAIL" not in told and "warn" not in told


@pytest.mark.processes
def test_a_gymnasium_environment_is_equal_when_a_worker_is_killed(tmp_path):
    assert "equal is True" in run(sys.executable, str(EXAMPLES / "gymnasium_vector.py"), cwd=tmp_path)


@pytest.mark.processes
def test_an_episode_of_a_server_is_seen_by_a_client(tmp_path):
    pytest.importorskip("websockets")
    assert "same episode" in run(sys.executable, str(EXAMPLES / "serve_clients.py"), "ragen", cwd=tmp_path)


@pytest.mark.slow
def test_trl_trains_on_a_server(tmp_path):
    for package in ("trl", "openenv", "jmespath"):
        pytest.importorskip(package)
    told = run(sys.executable, str(EXAMPLES / "serve_train_trl.py"), "--steps", "2", cwd=tmp_path)
    assert "reward" in told and "64 tasks" in told


@pytest.mark.models
def test_two_models_of_a_local_server_are_evaluated_and_compared(tmp_path, capsys, monkeypatch):
    def script(prompt, tries):
        return say("<think>go</think><answer>Dragon</answer>" if "Dragon" in prompt else "<answer>Down</answer>")

    monkeypatch.setenv("COLUMNS", "160")
    with chat_server(script, {"a": {}, "b": {}}) as server:
        code = example("evaluate_local_server").main([server.url, "a", "b", "--folder", str(tmp_path)])
    assert code == 0
    assert all((tmp_path / name / "report.html").is_file() for name in "ab")
    assert "A: a, B: b" in capsys.readouterr().out


@pytest.mark.slow
def test_the_tiny_model_is_trained(tmp_path):
    keys = [*SMALL, "trainer.total_training_steps=2", f"output_dir={tmp_path}"]
    assert example("train_tiny_model").main(keys) == 0
    assert (tmp_path / "metrics.jsonl").is_file() and (tmp_path / "report.html").is_file()


def test_the_training_on_textworld_has_keys_that_exist_and_prompts_that_can_be_read(monkeypatch):
    monkeypatch.chdir(ROOT)
    config = load_config("./examples/textworld_coins/coins.yaml")
    written = PromptTemplate.load("examples/textworld_coins/prompts.yaml")
    assert ContextSettings.read(config).template == written.model_copy(update={"system": ""})
    entries = read_config(plain_sections(config, ("custom_envs", "es_manager")), "train").entries
    assert {entry.spec.config.theme for entry in entries} == {"basic"}


def test_the_plug_in_depends_on_this_distribution_and_not_on_the_other_project_of_that_name():
    about = tomllib.loads((EXAMPLES / "number_hunt" / "pyproject.toml").read_text())
    assert about["project"]["dependencies"] == ["ragen-lanes"]


@pytest.mark.timeout(600)
def test_two_trainings_whose_thoughts_are_measured_are_drawn_side_by_side(tmp_path, monkeypatch):
    from ragen.env import resolve_env

    monkeypatch.setattr("ragen.training.trainer.draw_curve", lambda metrics, picture, title: True)
    before = resolve_env("frozen_lake")
    monkeypatch.chdir(tmp_path)
    few = ["trainer.total_training_steps=1", "warm_up.steps=1", "warm_up.groups=4"]
    few += [f"es_manager.train.{said}" for said in ("env_groups=2", "group_size=2", "env_configs.n_groups=[2]")]
    few += [f"es_manager.val.{said}" for said in ("env_groups=1", "env_configs.n_groups=[1]")]
    few += [f"tiny_model.{said}" for said in ("hidden_size=16", "num_hidden_layers=1", "num_attention_heads=2")]
    assert example("collapse_of_thoughts").main(few) == 0
    assert (tmp_path / "outputs/example/collapse/collapse.png").read_bytes().startswith(b"\x89PNG")
    assert resolve_env("frozen_lake") == before
