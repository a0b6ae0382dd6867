"""A checkout of RAGEN takes over the manager in a line, and a command proves that nothing else changes."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from support.checkouts import ROOT, bytes_of, python, write_checkout

MANAGER = "ragen/llm_agent/es_manager.py"
LINE = "from envlanes.ragen import EnvStateManager, EnvStatus, _worker_init, _worker_step_single_env\n"
ENGINE = ROOT / "engine"
EQUAL, DIFFERENT, REFUSED, NOT_PLAYED = range(4)


def git(folder: Path, *arguments: str) -> None:
    who = ("-c", "user.name=a", "-c", "user.email=a@example.com")
    subprocess.run(["git", *who, *arguments], cwd=folder, check=True, capture_output=True)


def committed(folder: Path) -> Path:
    git(folder, "init", "-q")
    git(folder, "add", "-A")
    git(folder, "commit", "-q", "-m", "its own")
    return folder


def change(folder: Path, path: str, *replaced: tuple[str, str]) -> None:
    text = (folder / path).read_text("utf-8")
    for old, new in replaced:
        assert old in text
        text = text.replace(old, new, 1)
    (folder / path).write_text(text, "utf-8")


def prove(folder: Path, *arguments: str, timeout: float = 200) -> subprocess.CompletedProcess:
    return python("-m", "envlanes.ragen.prove", ".", *arguments, cwd=folder, path=ENGINE, timeout=timeout)


@pytest.fixture(params=(2025, 2026))
def checkout(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    """An imitation of each generation."""
    return committed(write_checkout(tmp_path, request.param))


def test_rollouts_are_those_of_the_manager_that_stood_there(checkout: Path) -> None:
    (checkout / MANAGER).write_text(LINE)
    before = bytes_of(checkout)
    proved = prove(checkout)
    assert proved.returncode == EQUAL, proved.stdout + proved.stderr
    assert "6 of 6 tags x modes are equal" in proved.stdout and "not played: Absent" in proved.stdout
    assert bytes_of(checkout) == before


def test_it_can_be_proved_before_and_after_the_line_is_committed(tmp_path: Path) -> None:
    checkout = committed(write_checkout(tmp_path, 2026))
    assert prove(checkout, "--tags", "Walk").returncode == EQUAL
    (checkout / MANAGER).write_text(LINE)
    git(checkout, "commit", "-q", "-a", "-m", "taken over")
    assert prove(checkout, "--tags", "Walk").returncode == EQUAL
    assert prove(checkout, "--tags", "Walk,Absent").returncode == NOT_PLAYED


DIFFERENCES = {
    "penalty": ("+= self.sys_config.es_manager.format_penalty", "+= 2 * self.sys_config.es_manager.format_penalty"),
    "order of outputs": ("map(self._one, all_env_inputs)", "map(self._one, all_env_inputs[::-1])"),
    "seed counter": ("given - base + 1", "given - base"),
    "metric": ("np.sum(each) / (len(cache", "np.sum(each) / (1 + len(cache"),
    "type": ('"num_actions": status.num_actions', '"num_actions": float(status.num_actions)'),
}


@pytest.mark.parametrize("change_of", DIFFERENCES)
def test_a_manager_that_does_otherwise_is_told_from_ours(change_of: str, tmp_path: Path) -> None:
    write_checkout(tmp_path, 2026)
    change(tmp_path, MANAGER, DIFFERENCES[change_of])
    assert prove(tmp_path, "--tags", "Walk").returncode == DIFFERENT


def test_what_differs_from_itself_is_not_judged(tmp_path: Path) -> None:
    write_checkout(tmp_path, 2026)
    change(tmp_path, MANAGER, ("reward=reward", "reward=time.perf_counter()"), ("\n", "\nimport time\n"))
    assert prove(tmp_path, "--tags", "Walk").returncode == NOT_PLAYED


METHOD = ("    def render(self):", "    def budget(self):\n        return 1\n\n    def render(self):")
REFUSALS = {
    "budget": METHOD,
    "reset(level)": ("def reset(self, seed=None):", "def reset(self, seed=None, level=1):"),
    "self.budget": ("self.seed_counter = 0", "self.seed_counter = self.budget = 0"),
    "list": ("class EnvStateManager:", "class EnvStateManager(list):"),
}


@pytest.mark.parametrize("named", REFUSALS)
def test_a_manager_with_more_than_ragens_is_refused_with_the_other_door(named: str, tmp_path: Path) -> None:
    write_checkout(tmp_path, 2026)
    change(tmp_path, MANAGER, REFUSALS[named])
    proved = prove(tmp_path)
    assert proved.returncode == REFUSED and proved.stdout == ""
    assert f" has {named}, which" in proved.stderr and "hosted(REGISTERED_ENVS)" in proved.stderr


def test_what_is_no_checkout_or_has_no_manager_of_before_is_refused(tmp_path: Path) -> None:
    assert prove(tmp_path).returncode == REFUSED
    write_checkout(tmp_path, 2026)
    assert prove(tmp_path, "--tags", "Wolk").returncode == REFUSED
    (tmp_path / MANAGER).write_text(LINE)
    assert prove(tmp_path).returncode == REFUSED  # there is no git
    (tmp_path / "ragen/env/__init__.py").write_text("import a_package_that_is_not_there\n")
    assert prove(committed(tmp_path)).returncode == REFUSED


HOSTED = """
import contextlib, json, os, sys
from omegaconf import OmegaConf
from ragen.env import REGISTERED_ENVS
from ragen.llm_agent.es_manager import EnvStateManager

part = {"env_groups": 2, "group_size": 2, "env_configs": {"tags": ["Walk", "Counted"], "n_groups": [1, 1]}}
custom_envs = OmegaConf.load("config/envs.yaml").custom_envs
manager = EnvStateManager(OmegaConf.create({
    "seed": {"train": 5}, "custom_envs": custom_envs, "es_manager": {"format_penalty": -0.1, "train": part}
}))
shown = []
for _ in range(2):
    active = manager.reset()
    while active:
        actions = [["Left", "right", "Right"], ["no"]]
        asked = [{"env_id": c["env_id"], "actions": actions[c["env_id"] // 2]} for c in active]
        active = manager.step([{**each, "llm_response": "", "llm_raw_response": ""} for each in asked])
        if sys.argv[1] == "kill":
            import psutil
            for child in psutil.Process().children(recursive=True):
                with contextlib.suppress(psutil.NoSuchProcess):
                    if "envlanes worker" in " ".join([child.name(), *child.cmdline()]):
                        child.kill()
    shown += [repr(manager.get_rollout_states()), manager.render()]
kinds = sorted(type(entry["env"]).__name__ for entry in manager.envs)
manager.close()
print(json.dumps([shown, kinds]))
"""


def test_a_manager_that_is_kept_plays_hosted_environments(checkout: Path) -> None:
    (checkout / "play.py").write_text(HOSTED)

    def played(how: str) -> tuple[list[object], list[str]]:
        done = python("play.py", how, cwd=checkout, path=ENGINE)
        assert done.returncode == 0, done.stderr
        return tuple(__import__("json").loads(done.stdout))

    expected, kinds = played("")
    assert kinds == ["CountedEnv"] * 2 + ["WalkEnv"] * 2
    with (checkout / "ragen/env/__init__.py").open("a") as file:
        file.write("\nfrom envlanes.ragen import hosted\nREGISTERED_ENVS = hosted(REGISTERED_ENVS, max_workers=2)\n")
    for how in ("", "kill"):
        assert played(how) == (expected, ["CountedEnv"] * 2 + ["HostedEnv"] * 2)  # one counts in its class, and stays


WORKERS = """
import sys
from omegaconf import OmegaConf
from envlanes.ragen import EnvStateManager

part = {"env_groups": 1, "group_size": 2, "env_configs": {"tags": ["Walk"], "n_groups": [1]}}
settings = {"use_multiprocessing": True, "max_workers": 1, "backend": sys.argv[1], "train": part}
custom_envs = OmegaConf.load("config/envs.yaml").custom_envs
if __name__ == "__main__":  # which executors need
    with EnvStateManager(OmegaConf.create({"custom_envs": custom_envs, "es_manager": settings})) as manager:
        manager.reset()
        (cache, *_) = manager.step([{"env_id": 0, "actions": ["left"], "llm_response": "", "llm_raw_response": ""}])
        print("a_heavy_package" in sys.modules, cache["history"][0]["info"]["imported"], manager.home(0))
"""


@pytest.mark.parametrize("kind", ["process"])  # executors import the main script
def test_workers_do_not_import_what_a_checkouts_packages_import(kind: str, tmp_path: Path) -> None:
    write_checkout(tmp_path, 2026)
    change(tmp_path, "ragen/env/walk/env.py", ("import random", "import random\nimport sys"))
    change(tmp_path, "ragen/env/walk/env.py", ('"score":', '"imported": "a_heavy_package" in sys.modules, "score":'))
    (tmp_path / "play.py").write_text(WORKERS)
    done = python("play.py", kind, cwd=tmp_path, path=ENGINE)
    assert done.stdout == "True False worker 0\n", done.stderr
