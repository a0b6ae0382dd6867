"""``python -m ragen.cage2 search``, on the embedded simulator, with any number of workers, stopped and gone on."""

import json
import os
import re
import signal
import subprocess
import sys
import threading

import numpy as np
import pytest

from ragen.cage2.__main__ import main
from ragen.cage2.settings import SearchSettings, load_settings
from ragen.cage2.workflow import Compliance
from ragen.cage2.wrapper import ParallelEnvWrapper
from ragen.errors import ConfigError
from support.later import cage2_trainer
from support.leftovers import processes, until

TINY = ["n_workflows=2", "n_envs=4", "train_episodes_per_env=2", "max_steps=8", "update_every_steps=8", "seed=3"]


@pytest.fixture(autouse=True)
def no_pictures(request, monkeypatch):
    """They take longer than everything else."""
    if request.function is not test_the_command_searches_and_says_what_it_found:
        monkeypatch.setattr("ragen.cage2.trainer.draw_search", lambda path, results: path)


def search(folder, *overrides):
    return main(["search", "--quiet", "simulator=embedded", f"checkpoint_dir={folder}", *TINY, *overrides])


def state(folder):
    return json.loads((folder / "search.json").read_text())["results"]


def test_the_command_searches_and_says_what_it_found(tmp_path, capsys):
    assert search(tmp_path, "use_multiprocessing=false") == 0
    said = capsys.readouterr().out
    assert re.search(r"best: .* > .*: -?\d+\.\d\nworst: .*\ndifference \d+\.\d, (not )?more than the noise of", said)
    assert re.search(r"believed best of all 120: .* > .*: -?\d+\.\d ± \d+\.\d\n", said)
    assert said.splitlines()[-1].startswith("environments: ")
    assert (tmp_path / "returns_by_order.png").exists()
    rows = json.loads((tmp_path / "results.json").read_text())
    assert [row["simulator"] for row in rows] == ["embedded"] * 2
    for row in rows:
        assert f"{row['train_reward']:.1f}" in said and " > ".join(row["workflow"]) in said
        assert row["train_reward"] < 0


def test_any_number_of_workers_finds_the_same(tmp_path):
    search(tmp_path / "none", "use_multiprocessing=false")
    for workers in ("1", "2"):
        search(tmp_path / workers, "use_multiprocessing=true", f"workers={workers}")
        assert state(tmp_path / "none") == state(tmp_path / workers)
    assert until(lambda: not processes())


def test_killed_workers_change_nothing(tmp_path):
    settings = {**SMALL, "use_multiprocessing": True, "workers": 2}

    def kills(progress):
        for pid, title in processes().items():
            if "worker" in title:
                os.kill(pid, signal.SIGKILL)
                killed.append(pid)

    killed = []
    disturbed = cage2_trainer.ParallelWorkflowRLTrainer(checkpoint_dir=str(tmp_path / "one"), **settings)
    disturbed.run_workflow_search(kills)
    calm = cage2_trainer.ParallelWorkflowRLTrainer(checkpoint_dir=str(tmp_path / "other"), **settings)
    assert disturbed.results == calm.run_workflow_search() and len(killed) >= 2
    assert until(lambda: not processes())


SMALL = {key: int(value) for key, value in (each.split("=") for each in TINY)} | {"simulator": "embedded"}


def test_ctrl_c_stops_after_an_update_and_the_same_command_goes_on(tmp_path, capsys):
    stopped = tmp_path / "stopped"

    def interrupt():
        if until((stopped / "search.json").exists):
            os.kill(os.getpid(), signal.SIGINT)

    thread = threading.Thread(target=interrupt)
    thread.start()
    code = search(stopped, "use_multiprocessing=false", "n_workflows=500")
    thread.join()
    assert code == 130 and f"to resume: the same command with checkpoint_dir={stopped}" in capsys.readouterr().out
    finished = len(state(stopped))
    assert 1 <= finished < 500
    assert search(stopped, f"n_workflows={finished + 1}") == 0
    assert len(state(stopped)) == finished + 1


@pytest.mark.parametrize(
    ("override", "said"),
    [
        ("n_workflow=3", "Did you mean 'n_workflows'"),
        ("n_envs=many", "'n_envs' is 'many'; expected a whole number"),
        ("n_envs", "expected key=value"),
        ("simulator=real", "simulator = 'real'"),
        ("red_agent_type=Nobody", "Nobody"),
        ("backend=threads", "backend = 'threads'"),
    ],
)
def test_a_setting_that_cannot_work_is_named(tmp_path, override, said, capsys):
    assert search(tmp_path, override) == 2
    assert said in capsys.readouterr().err and not (tmp_path / "search.json").exists()


def test_another_command_is_none(capsys):
    for words, status in (["find"], 2), ([], 2), (["--help"], 0):
        with pytest.raises(SystemExit) as ended:
            main(words)
        assert ended.value.code == status
        assert "search" in "".join(capsys.readouterr())


def test_the_configuration_is_of_known_keys_with_the_classs_defaults():
    found, default = load_settings(), SearchSettings()
    different = {name for name in vars(default) if getattr(found, name) != getattr(default, name)}
    assert not different
    assert load_settings(["lr=1e-3", "alignment_alpha=30"]).alignment_alpha == 30.0
    with pytest.raises(ConfigError, match="expected key=value"):
        load_settings(["lr"])


def test_torch_is_imported_only_where_it_trains():
    names = ("workflow", "buffer", "order_search", "settings", "results")
    looks = "print(NAME, {'torch', 'omegaconf', 'matplotlib'} & set(sys.modules))"
    lines = (f"import ragen.cage2.{name}; {looks.replace('NAME', repr(name))}" for name in names)
    program = "\n".join(["import sys", *lines])
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines() == [f"{name} set()" for name in names]


def test_on_the_simulator_reds_foothold_does_not_count_as_compromised():
    with ParallelEnvWrapper(2, None, "SleepAgent", simulator="embedded", use_multiprocessing=False) as envs:
        envs.reset()
        compliance = Compliance(2, ("user", "enterprise", "op_server", "op_host", "defender"))
        for _ in range(3):
            actions = np.array([133, 141])  # Restore Enterprise0, Restore User1
            infos = envs.step(actions)[3]
            compliance.step(actions, np.array([info["compromised_before"] for info in infos]))
        assert {states["User0"] for states in envs.get_true_states()} == {"Privileged"}
        assert compliance.rates() == [1.0, 1.0]


def test_the_real_one_is_searched_alike_in_workers_and_without(tmp_path, cage2_path):
    settings = {**SMALL, "simulator": "cage2", "cage2_path": str(cage2_path), "n_envs": 2, "max_steps": 6}
    settings |= {"update_every_steps": 6, "red_agent_type": "B_lineAgent"}
    found = []
    for where in (False, True):
        trainer = cage2_trainer.ParallelWorkflowRLTrainer(
            checkpoint_dir=str(tmp_path / str(where)), use_multiprocessing=where, workers=2, **settings
        )
        found.append(trainer.run_workflow_search())
    assert found[0] == found[1] and {result.simulator for result in found[0]} == {"cage2"}
    assert until(lambda: not processes())
