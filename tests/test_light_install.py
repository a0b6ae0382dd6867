"""``pip install .``, as a user has it: small, without torch, and all that it promises works in it.

It makes a virtual environment and needs a package index, so only CI and ``pytest -m install`` run it.
"""

import os
import re
import shutil
import subprocess
import sys
from importlib.metadata import distributions
from pathlib import Path

import pytest

from support.chat_server import chat_server

ROOT = Path(__file__).resolve().parents[1]
HEAVY = {"torch", "verl", "ray", "pandas", "matplotlib", "transformers", "tokenizers", "tensordict"}
LARGEST = 200e6
"""Bytes of all files of ``site-packages``, pip's own among them."""
pytestmark = [pytest.mark.install, pytest.mark.timeout(600)]

MANAGER = """
import sys
from ragen.llm_agent.es_manager import EnvStateManager
assert not {"torch", "hydra", "omegaconf", "verl", "ray"} & set(sys.modules)
from ragen.config.loading import load_config

if __name__ == "__main__":
    config = load_config("mixed", ["es_manager.use_multiprocessing=true", "es_manager.max_workers=2"])
    with EnvStateManager(config, mode="train") as manager:
        active = manager.reset()
        replies = [dict(env_id=each["env_id"], actions=["Up"], llm_response="", llm_raw_response="") for each in active]
        manager.step(replies)
        in_workers = sum(each.turns for each in manager.lane_stats() if each.lane != 'main')
        print(len(manager.get_rollout_states()), in_workers > 0)
"""
VECTOR = """
import gymnasium
from envlanes.gym import LaneVectorEnv

if __name__ == "__main__":
    envs = LaneVectorEnv([lambda: gymnasium.make("CartPole-v1")] * 4, workers=2)
    envs.reset(seed=0)
    print(envs.step(envs.action_space.sample())[0].shape)
    envs.close()
"""
FAILING = """
from ragen.env import BaseEnv

class Failing(BaseEnv):
    def reset(self, seed=None, mode=None):
        return "begin"

    def step(self, action):
        raise ValueError("not today")

    def render(self, mode=None):
        return "here"
"""
PLAY_FAILING = """
from ragen.llm_agent.es_manager import EnvStateManager

TAG = {"env_type": "failing:Failing", "max_actions_per_traj": 2}
GROUPS = {"env_groups": 1, "group_size": 1, "env_configs": {"tags": ["Failing"], "n_groups": [1]}}

if __name__ == "__main__":
    managed = {"use_multiprocessing": False, "crash_report_dir": "reports", "train": GROUPS, "val": GROUPS}
    with EnvStateManager({"es_manager": managed, "custom_envs": {"Failing": TAG}}, mode="train") as manager:
        manager.reset()
        manager.step([dict(env_id=0, actions=["go"], llm_response="", llm_raw_response="")])
"""


def environment(folder, *wheels):
    """A function that runs a program of a virtual environment with these wheels; what it printed."""
    venv = folder / "venv"
    subprocess.run([sys.executable, "-m", "venv", str(venv)], check=True)
    install(venv / "bin" / "python", "install", "-c", str(ROOT / "constraints.txt"), *wheels)
    inherited = {name: value for name, value in os.environ.items() if name not in ("PYTHONPATH", "PYTHONFAULTHANDLER")}

    def run(*words, folder, code=0, **environment):
        command = [venv / "bin" / words[0], *words[1:]]
        env = {**inherited, **environment}
        ran = subprocess.run(command, cwd=folder, env=env, capture_output=True, text=True, timeout=120, check=False)
        assert ran.returncode == code, ran.stdout + ran.stderr
        return ran.stdout + ran.stderr

    run.packages = venv / "lib" / f"python{sys.version_info.major}.{sys.version_info.minor}" / "site-packages"
    return run


def install(python, *words):
    done = subprocess.run([python, "-m", "pip", "-q", *words], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


@pytest.fixture(scope="module")
def wheels(tmp_path_factory):
    """The engine's wheel and the package's, built from a copy: build/ may have modules that are gone."""
    folder = tmp_path_factory.mktemp("wheels")
    for name in ("ragen", "config", "engine"):
        ignored = shutil.ignore_patterns("__pycache__", "build", "*.egg-info")
        shutil.copytree(ROOT / name, folder / "clone" / name, ignore=ignored)
    for name in ("setup.py", "pyproject.toml", "README.md", "LICENSE", "MANIFEST.in"):
        shutil.copy(ROOT / name, folder / "clone" / name)
    clone = folder / "clone"
    install(sys.executable, "wheel", "--no-deps", "-w", str(folder), str(clone / "engine"), str(clone))
    (engine,), (package,) = folder.glob("envlanes-*.whl"), folder.glob("ragen_lanes-*.whl")
    return str(engine), str(package)


@pytest.fixture(scope="module")
def light(wheels, tmp_path_factory):
    return environment(tmp_path_factory.mktemp("light"), *wheels)


def test_the_engine_plays_alone(wheels, tmp_path):
    engine = environment(tmp_path, wheels[0])
    (script, _) = re.findall(r"```python\n(.*?)```", (ROOT / "engine/README.md").read_text("utf-8"), re.DOTALL)
    (tmp_path / "script.py").write_text(script)
    observations, rewards = engine("python", "script.py", folder=tmp_path).splitlines()
    assert observations.count("at 0") == 8 and any(float(each) for each in rewards.strip("[]").split(", "))
    installed = {each.name.lower() for each in distributions(path=[str(engine.packages)])}
    assert installed - {"pip", "setuptools", "wheel"} == {"envlanes", "numpy", "cloudpickle", "psutil"}


def test_a_clone_named_as_the_package_does_not_hide_it(tmp_path):
    clone, python = tmp_path / "ragen", tmp_path / "venv" / "bin" / "python"
    for name in ("ragen", "config"):
        shutil.copytree(ROOT / name, clone / name, ignore=shutil.ignore_patterns("__pycache__"))
    for name in ("setup.py", "pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, clone / name)
    subprocess.run([sys.executable, "-m", "venv", str(tmp_path / "venv")], check=True)
    subprocess.run([python, "-m", "pip", "install", "-q", "--no-deps", "-e", clone], check=True)
    (tmp_path / "script.py").write_text("import ragen\nprint(ragen.__file__)")
    environment = {**os.environ, "PYTHONPATH": str(ROOT / "engine")}
    for words in (["script.py"], ["-c", "import ragen; print(ragen.__file__)"]):
        told = subprocess.check_output([python, *words], cwd=tmp_path, env=environment, text=True)
        assert told.strip() == str(clone / "ragen" / "__init__.py")


def test_no_heavy_package_is_installed_and_all_of_them_are_small(light):
    installed = {each.name.lower() for each in distributions(path=[str(light.packages)])}
    assert "ragen-lanes" in installed and installed & HEAVY == set()
    assert sum(path.lstat().st_size for path in light.packages.rglob("*") if path.is_file()) < LARGEST


def test_the_first_commands_of_the_readme_show_that_workers_change_nothing(light, tmp_path):
    readme = (ROOT / "README.md").read_text("utf-8")
    install = re.search(r"^    python3 -m venv .venv && .venv/bin/(.*) && . .venv/bin/activate$", readme, re.M)[1]
    assert install == "pip install -q -c constraints.txt -e engine -e ."
    for command in re.findall(r"^    (ragen rollout output_dir=.*)$", readme, re.M):
        assert "rollouts.jsonl" in light(*command.split(), folder=tmp_path)
    a, b = ((tmp_path / folder / "rollouts.jsonl").read_bytes() for folder in "ab")
    assert a == b


@pytest.mark.parametrize(("script", "told"), [(MANAGER, "128 True"), (VECTOR, "(4, 4)")])
def test_the_manager_and_vector_environments_play_in_workers(light, tmp_path, script, told):
    (tmp_path / "script.py").write_text(script)
    assert light("python", "script.py", folder=tmp_path).strip() == told


def test_an_evaluation_asks_a_server(light, tmp_path):
    small = ["es_manager.val.env_groups=2", "es_manager.val.group_size=1", "es_manager.val.env_configs.n_groups=[2]"]
    with chat_server() as server:
        told = light(
            *("ragen", "eval", f"actor.base_url={server.url}", "actor.model=tiny", "agent_proxy.max_turn=2", *small),
            *("es_manager.val.env_configs.tags=[Bandit]", "output_dir=here", "report=true"),
            folder=tmp_path, OPENAI_API_KEY="k",
        )  # fmt: skip
    assert len((tmp_path / "here" / "rollouts.jsonl").read_text().splitlines()) == 2, told
    assert (tmp_path / "here" / "report.html").is_file() and server.bodies


def test_an_environment_is_checked_and_its_failure_replayed(light, tmp_path):
    (tmp_path / "failing.py").write_text(FAILING)
    (tmp_path / "script.py").write_text(PLAY_FAILING)
    light("ragen", "check", "bandit", folder=tmp_path)
    light("python", "script.py", folder=tmp_path)
    (report,) = (tmp_path / "reports").iterdir()
    words = "ragen", "play", "failing:Failing", "--replay", str(report)
    replayed = light(*words, folder=tmp_path, code=1)  # 1: it happened again
    assert "It happened again, at turn 1: ValueError: not today" in replayed
