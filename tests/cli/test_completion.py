"""Completion: what is offered for which words, and that a shell gets it."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from ragen.cli.commands import COMMANDS
from ragen.cli.completion import SCRIPTS, main, words_for
from ragen.env.registry import known_names

ROOT = Path(__file__).resolve().parents[2]


@pytest.mark.parametrize(
    ("typed", "offered"),
    [
        (["ro"], ["rollout"]),
        (["rollout", "--config-n"], ["--config-name"]),
        (["rollout", "--config-name", "_2"], ["_2_sokoban"]),
        (["rollout", "es_manager.max_w"], ["es_manager.max_workers="]),
        (["train", "-cn", "tiny", "trainer.reward"], ["trainer.reward_sign="]),
        (["play", "soko"], ["sokoban"]),
        (["play", "sokoban", "dim_"], ["dim_room=", "dim_x=", "dim_y="]),
        (["play", "sokoban", "--mode", "t"], ["test", "train"]),
        (["completion", "f"], ["fish"]),
        (["compare", "outp"], []),
        (["nobody", ""], []),
        (["play", "--seed", ""], []),
    ],
)
def test_what_is_offered(typed, offered):
    assert words_for(typed) == offered


def test_without_a_word_all_commands_and_all_types_are_offered():
    assert set(COMMANDS) <= set(words_for([""]))
    assert words_for(["check", ""]) == sorted(known_names())


def test_configurations_and_keys_are_those_of_the_folder_that_is_named(tmp_path):
    (tmp_path / "mine.yaml").write_text("defaults: [base]\nmy_key: 1\n")
    assert words_for(["rollout", "-cd", str(tmp_path), "-cn", "m"]) == ["mine", "mixed"]
    assert words_for(["rollout", "-cd", str(tmp_path), "-cn", "mine", "my_"]) == ["my_key="]


def test_a_line_that_cannot_be_read_offers_nothing_and_says_nothing(capsys):
    assert words_for(["rollout", "-cn", "nobodys", "es"]) == []
    assert words_for(["rollout", "--config-nam", "--x", "es"]) == []
    assert capsys.readouterr() == ("", "")


@pytest.mark.parametrize("shell", SCRIPTS)
def test_scripts_are_scripts_of_their_shell(shell, tmp_path):
    if (found := shutil.which(shell)) is None:
        pytest.skip(f"no {shell} here")
    path = tmp_path / "script"
    path.write_text(SCRIPTS[shell])
    checked = subprocess.run([found, "-n", str(path)], capture_output=True, text=True)
    assert (checked.returncode, checked.stderr) == (0, "")


@pytest.mark.parametrize(
    ("line", "replies"),
    [
        ("ragen rollout es_manager.max_w", ["es_manager.max_workers="]),
        ("ragen play ", sorted(known_names())),
    ],
)
def test_bash_gets_what_is_offered(line, replies, tmp_path, capsys):
    if shutil.which("bash") is None:
        pytest.skip("no bash here")
    main(["bash"])
    command = tmp_path / "ragen"
    command.write_text(f'#!/bin/sh\nexec {sys.executable} -m ragen "$@"\n')
    command.chmod(0o755)
    words = line.split(" ")
    script = (
        "compopt() { :; }\n"  # which only works while a word is being completed
        f"{capsys.readouterr().out}"
        f'COMP_WORDS=({" ".join(words[:-1])} "{words[-1]}") COMP_CWORD={len(words) - 1}\n'
        f'COMP_LINE="{line}" COMP_POINT={len(line)}\n_ragen\nprintf "%s\\n" "${{COMPREPLY[@]}}"\n'
    )
    env = {**os.environ, "PATH": f"{tmp_path}:{os.environ['PATH']}", "PYTHONPATH": str(ROOT)}
    ran = subprocess.run(["bash", "-c", script], env=env, capture_output=True, text=True)
    assert ran.stdout.split() == replies, ran.stderr
