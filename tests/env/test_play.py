from __future__ import annotations

import io
from typing import Any

import pytest

from ragen.env import REGISTERED_ENVS
from ragen.env.fields import build_env
from ragen.errors import MissingExtraError, SandboxError
from ragen.tools.play import main, play


class Pipe(io.StringIO):
    """Lines that come from no terminal."""


def played(env_type: str, lines: str, *settings: str, **options: Any) -> str:
    """What is shown when these lines are played."""
    out = io.StringIO()
    env = build_env(env_type, settings)
    play(env, env_type, Pipe(lines), out, **options)
    return out.getvalue()


def run(monkeypatch: pytest.MonkeyPatch, *arguments: str, lines: str = "") -> int:
    monkeypatch.setattr("sys.stdin", Pipe(lines))
    try:
        return main([*arguments])
    except SystemExit as stop:  # argparse
        return stop.code


@pytest.mark.parametrize("env_type", sorted({*REGISTERED_ENVS} - {"openenv"}))  # which needs a server
def test_every_environment_shows_its_state_and_its_actions(env_type: str) -> None:
    try:
        env = build_env(env_type)
    except (MissingExtraError, SandboxError) as lacks:
        pytest.skip(str(lacks))
    shown = played(env_type, "quit\n", seed=1)
    env.reset(1)
    assert env.render() in shown
    assert f"{env_type}, seed 1." in shown
    assert "Actions: " in shown
    assert shown.rstrip().endswith("Left after 0 actions, total reward 0.")


def test_the_command_plays_what_is_piped_in(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(monkeypatch, "game_2048", "--seed", "3", "size=3", lines="up\nquit\n") == 0
    shown = capsys.readouterr().out
    assert "> up\n" in shown
    assert "Left after 1 action," in shown


class Interrupted(Pipe):
    """Lines after which Ctrl-C is pressed at the prompt."""

    def readline(self, *_: Any) -> str:
        if line := super().readline():
            return line
        raise KeyboardInterrupt


def test_ctrl_c_at_the_prompt_ends_the_episode_in_a_line(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("sys.stdin", Interrupted("up\n"))
    assert main(["game_2048", "--seed", "3"]) == 0
    captured = capsys.readouterr()
    assert captured.out.splitlines()[-2:] == ["", "Left after 1 action, total reward 0."] and not captured.err
    assert "'quit' or Ctrl-C ends" in captured.out
