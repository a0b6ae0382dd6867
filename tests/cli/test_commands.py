"""The command ``ragen``: what it takes, what it says, and what it does not import."""

import json
import re
import runpy
import subprocess
import sys
from pathlib import Path

import pytest

from ragen.cli.commands import COMMANDS
from ragen.cli.main import USAGE_ERROR, main
from ragen.output import command_output
from ragen.results.page import unpacked

ROOT = Path(__file__).resolve().parents[2]
HEAVY = {"torch", "verl", "transformers", "tensordict", "ray", "hydra", "omegaconf", "rich", "matplotlib"}


def run(capsys, *words):
    """Exit code, output and errors of ``ragen WORDS`` in this process."""
    try:
        code = main(words)
    except SystemExit as exit_:
        code = exit_.code
    told = capsys.readouterr()
    return code, told.out, told.err


def test_without_a_word_the_commands_are_listed(capsys):
    code, out, _ = run(capsys)
    assert code == 0
    assert re.findall(r"^  (\w+) ", out.partition("options:")[0], re.M) == list(COMMANDS)
    assert (code, out) == run(capsys, "--help")[:2]


def test_a_full_disk_is_one_line():
    with open("/dev/full", "w") as full:
        done = subprocess.run([sys.executable, "-m", "ragen", "list"], stdout=full, stderr=subprocess.PIPE, text=True)
    assert done.returncode == 1 and len(done.stderr.splitlines()) == 1


@pytest.mark.parametrize("name", COMMANDS)
def test_every_command_has_help_with_an_example_under_its_own_name(capsys, name):
    code, out, _ = run(capsys, name, "--help")
    assert code == 0
    assert out.startswith(f"usage: ragen {name}")
    assert re.search(r"Examples?:", out)
    assert "python -m" not in out
    assert run(capsys, "help", name) == (0, out, "")


@pytest.mark.parametrize(
    ("words", "meant"),
    [
        ("rolout", "'rollout'"),
        ("--config-name mixed", "--config-name"),
        ("rollout --cfg es_manager.max_workres=3", "'es_manager.max_workers'"),
        ("rollout --cfg model=x", "'actor.model'"),
        ("rollout --cfg limit=2", "limit"),
        ("rollout --cfg tags=Bandit", "env_configs.tags"),
        ("rollout --cfg agent_proxy.max_turn.x=3", "agent_proxy.max_turn.x"),
        ("rollout --max-workrs", "'es_manager.max_workers=VALUE'"),
        ("rollout --repot", "'report=VALUE'"),
        ("rollout --output-dir=here", "'output_dir=here'"),
        ("rollout --confg-name mixed", "'--config-name'"),
        ("rollout --config-name 2_sokoban", "'_2_sokoban'"),
        ("train --config-name tinny", "'tiny'"),
        ("play sokobn", "'sokoban'"),
        ("play", "type"),
        ("compare a", "B"),
    ],
)
def test_a_mistake_is_refused_with_what_was_meant(capsys, words, meant):
    code, out, err = run(capsys, *words.split())
    assert (code, out) == (USAGE_ERROR, "") and meant in err


def test_help_imports_nothing_that_is_slow():
    code = (
        "import sys\n"
        "from ragen.cli.main import main\n"
        f"for name in {list(COMMANDS)!r}:\n"
        "    try: main([name, '--help'])\n"
        "    except SystemExit: pass\n"
        f"    print('HEAVY', name, sorted({HEAVY!r} & set(sys.modules)))\n"
    )
    ran = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)
    heavy = [line for line in ran.stdout.splitlines() if line.startswith("HEAVY")]
    assert heavy == [f"HEAVY {name} []" for name in COMMANDS]


PLAY = "rollout --config-name _1_bandit es_manager.val.env_groups=2 es_manager.val.env_configs.n_groups=[2] report=true"


@pytest.mark.parametrize("words", ["--help", "list backends", PLAY])
def test_a_command_whose_output_nobody_reads_ends_without_a_traceback(words, tmp_path):
    words += f" output_dir={tmp_path}" if words == PLAY else ""
    ran = subprocess.run(
        ["bash", "-c", f"{sys.executable} -u -m ragen {words} 2>&1 | head -1; echo ${{PIPESTATUS[0]}}"],
        cwd=ROOT, capture_output=True, text=True,
    )  # fmt: skip
    assert ran.stderr == "" and ran.stdout.splitlines()[-1] in ("0", "1", "141")  # 1: as rich ends it


@pytest.mark.parametrize("name", ["stdout", "stderr"])
def test_a_stream_that_was_closed_before_the_start_is_no_error(monkeypatch, capsys, name):
    monkeypatch.setattr(sys, name, None)  # as Python has it after `>&-`
    assert main(["rollout", "--cfg"]) == 0
    with command_output():
        assert not getattr(sys, name).isatty()
    assert getattr(sys, name) is None


def test_the_command_finds_an_environment_in_the_folder_it_is_run_in(tmp_path):
    (tmp_path / "my_game.py").write_text(
        "from ragen.env.bandit.env import BanditEnv\n\n\nclass MyGame(BanditEnv):\n    pass\n"
    )
    installed = "import sys; from ragen.cli.main import main; del sys.path[0]; sys.exit(main())"
    command = [sys.executable, "-c", installed, "play", "my_game:MyGame", "--seed", "1"]
    ran = subprocess.run(command, cwd=tmp_path, input="", capture_output=True, text=True)
    assert (ran.returncode, ran.stderr) == (0, "") and ran.stdout.startswith("my_game:MyGame, seed 1.")


def row(**changes):
    """A trajectory as ``rollouts.jsonl`` has it."""
    told = {"role": "user", "content": "Turn 1:\nState:\n#_P\n#__\nYou have 3 actions left. Always output: <answer>"}
    said = {"role": "assistant", "content": "<answer>Up</answer>"}
    return {
        "env_id": 0, "group_id": 0, "tag": "Lake", "seed": 5, "mode": "val", "messages": [told, said],
        "actions": [[3]], "rewards": [1.0], "infos": [{"success": True}], "penalty": 0, "success": True,
        "metrics": {"Lake/success": 1.0},
    } | changes  # fmt: skip


def test_a_report_is_written_from_the_rows_of_a_run(capsys, tmp_path):
    rows = [row(), row(env_id=1, error="no reply <script>", success=False, metrics={})]
    (tmp_path / "rollouts.jsonl").write_text("".join(json.dumps(each) + "\n" for each in rows))
    (tmp_path / "run.json").write_text(json.dumps({"mode": "val", "actor.model": "a-model"}))
    code, out, _ = run(capsys, "report", str(tmp_path))
    page = (tmp_path / "report.html").read_text("utf-8")
    assert code == 0 and "2 trajectories" in out
    (data,) = re.findall(r'class="pack" data-first="0">([^<]*)<', page)
    assert "<h1>a-model (val)</h1>" in page and unpacked(data) == rows


@pytest.mark.parametrize("content", [None, "", '{"a": 1}\n', json.dumps(row(messages=3)) + "\n"])
def test_a_report_of_something_else_is_refused_and_nothing_written(capsys, tmp_path, content):
    if content is not None:
        (tmp_path / "rollouts.jsonl").write_text(content)
    code, _, err = run(capsys, "report", str(tmp_path))
    assert code == 2 and err.startswith("error: ")
    assert not (tmp_path / "report.html").exists()


def test_two_runs_are_compared_by_their_folders_or_their_rows(capsys, tmp_path):
    for name, success in (("a", True), ("b", False)):
        (tmp_path / name).mkdir()
        rows = [row(env_id=i, seed=i, success=success) for i in range(4)]
        (tmp_path / name / "rollouts.jsonl").write_text("".join(json.dumps(each) + "\n" for each in rows))
    code, out, _ = run(capsys, "compare", str(tmp_path / "a"), str(tmp_path / "b/rollouts.jsonl"), "--seeds")
    assert code == 0 and "Lake, A better: 0, 1, 2, 3" in out


@pytest.mark.parametrize("command", ["rollout", "eval actor.model=m", "train", "suite"])
def test_a_misspelt_key_of_a_file_is_refused_by_every_command(capsys, tmp_path, monkeypatch, command):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "mine.yaml").write_text("defaults: [base]\nagent_proxy: {max_turns: 6}\n")
    code, out, err = run(capsys, *command.split(), "--config-name", "./mine")
    assert (code, out) == (USAGE_ERROR, "") and "'agent_proxy.max_turns'" in err and "'agent_proxy.max_turn'" in err
    assert [each.name for each in tmp_path.iterdir()] == ["mine.yaml"]


def test_training_without_a_configuration_trains_what_needs_no_gpu(capsys):
    assert "trainer:\n  backend: tiny" in run(capsys, "train", "--cfg")[1]


def test_ctrl_c_while_the_package_is_imported_is_no_traceback(monkeypatch):
    class Interrupts:
        def find_spec(self, name, *_):
            if name == "ragen.cli.main":
                raise KeyboardInterrupt

    monkeypatch.delitem(sys.modules, "ragen.cli.main")
    monkeypatch.setattr(sys, "meta_path", [Interrupts(), *sys.meta_path])
    with pytest.raises(SystemExit) as stopped:
        runpy.run_module("ragen", run_name="__main__")
    assert stopped.value.code == 130


SWALLOWS = """
import signal

try:
    signal.raise_signal(signal.SIGINT)
except KeyboardInterrupt:
    pass

def main(words, prog):
    return 0
"""


def test_an_import_that_swallows_ctrl_c_does_not_lose_it(monkeypatch, tmp_path):
    (tmp_path / "swallows.py").write_text(SWALLOWS)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setitem(COMMANDS, "list", COMMANDS["list"]._replace(module="swallows"))
    assert main(["list"]) == 130
