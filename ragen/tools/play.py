"""The commands ``ragen play TYPE [--seed N] [key=value ...]``, by hand, and ``ragen play [TYPE] --replay FILE``.

Lines may also come from a pipe. A turn is played as in a rollout, by the same function, with global generators seeded
alike.
"""

from __future__ import annotations

import argparse
import secrets
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, TextIO

from envlanes.episode.global_rng import EnvRng
from envlanes.ragen.seeds import SEED_LIMIT
from envlanes.ragen.step import success_of
from envlanes.ragen.turn import TEXT, Turn, action_lookup
from ragen.commands import STOPPED, CommandParser, refusing
from ragen.env.fields import build_env
from ragen.env.registry import known_names
from ragen.errors import EnvError, RagenError, counted, described_with_place, in_short

PROG = "python -m ragen.tools.play"
_QUIT = "quit"
_LONGEST_SHOWN = 60  # characters of an info value


def parser(prog: str = PROG) -> argparse.ArgumentParser:
    """The command line, under this name."""
    top = CommandParser(
        prog=prog,
        description="Play one environment in the terminal, or from a pipe.",
        examples=(f"{prog} sokoban --seed 3 dim_x=8",),
    )
    top.add_argument("type", nargs="?", help=f"{', '.join(sorted(known_names()))}, or package.module:Class")
    top.add_argument(
        "settings", nargs="*", default=[], metavar="key=value", help="a key of env_config, such as dim_x=8"
    )
    top.add_argument("--seed", type=int, help="the level to play; random by default")
    top.add_argument("--mode", choices=("train", "val", "test"), default="train", help="split of the data")
    again = top.add_argument_group("a failure", "plays the episode of a crash report to its failure")
    again.add_argument("--replay", type=Path, metavar="FILE", help="the report, which the failure's log line names")
    again.add_argument("--pdb", action="store_true", help="play it in this process, with the debugger at the failure")
    again.add_argument(
        "--path", action="append", default=[], metavar="FOLDER", help="let the configuration name files in this folder"
    )
    return top


@refusing
def main(arguments: list[str] | None = None, prog: str = PROG) -> int:
    """Run the command line.

    Args:
        arguments: Arguments after the program's name; None takes it from the command line.
        prog: The program's name.

    Returns:
        0; or, after a sentence on standard error, 1 if the environment failed, 2 if the arguments are wrong, 130 after
        Ctrl-C, except at the prompt, where it ends the episode. With ``--replay``, see :mod:`ragen.tools.replay`.
    """
    top = parser(prog)
    options = top.parse_intermixed_args(arguments)  # options may stand anywhere
    if options.replay is not None:
        from ragen.tools.replay import replay

        return replay(options.replay, options.type, options.path, options.pdb)
    if options.type is None:
        top.error("name a type of environment, or --replay FILE")
    try:
        with _failing(options.type, "while it was built"), EnvRng(0).in_place():
            env = build_env(options.type, options.settings)
        try:
            play(env, options.type, sys.stdin, sys.stdout, seed=options.seed, mode=options.mode)
        except BaseException:
            with suppress(Exception):  # a second failure would hide the first
                _close(env)
            raise
        with _failing(options.type, "while it was closed"):
            _close(env)
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)
        return STOPPED
    return 0


def _close(env: Any) -> None:
    if (close := getattr(env, "close", None)) is not None:
        close()


@contextmanager
def _failing(env_type: str, when: str) -> Iterator[None]:
    """Raise an ``EnvError`` for an exception of the environment's own code."""
    try:
        yield
    except RagenError:
        raise
    except (Exception, SystemExit) as error:
        raise EnvError(f"{env_type} raises {when}: {described_with_place(error)}") from error


def play(env: Any, env_type: str, lines: TextIO, out: TextIO, seed: int | None = None, mode: str = "train") -> None:
    """Play one episode: show the state, read an action, play it, until it is over, ``quit``, Ctrl-C, or the lines end.

    Args:
        env: The environment; it is reset here.
        env_type: Its name, for messages.
        lines: The actions, one a line.
        out: Receives states and rewards.
        seed: The level; None draws one.
        mode: The mode given to ``reset``.

    Raises:
        InputError: The seed is out of range.
        EnvError: The environment raised it, or one of its methods returned a value of the wrong form.
    """
    seed = secrets.randbelow(SEED_LIMIT) if seed is None else seed
    rng = EnvRng(seed)
    with _failing(env_type, f"in the reset with seed {seed}"), rng.in_place():
        seen = _state(env, TEXT.reset(env, seed, {"mode": mode}))
    lookup = action_lookup(env) or {}
    names = {word.lower(): name for key, name in lookup.items() for word in (name, str(key))}
    legal = ", ".join(f"{name} ({key})" for key, name in lookup.items()) or getattr(env, "action_hint", "any text")
    print(
        f"{env_type}, seed {seed}. One action per line; {_QUIT!r} or Ctrl-C ends.\nActions: {legal}\n\n{seen}",
        file=out,
    )
    played, total, done = 0, 0.0, False
    info: dict[str, Any] = {}
    while not done and (text := _ask(lines, out)) is not None:
        action = names.get(text.strip().lower()) if names else text
        if action is None:
            print(f"{text!r} is not one of {legal}.", file=out)
            continue
        with _failing(env_type, f"in turn {played + 1} ({action!r})"), rng.in_place():
            result = TEXT.play(env, Turn((action,), 1))
            seen = _state(env, result.observation)
        played, total, done, info = played + 1, total + result.reward, result.done, result.info
        values = ", ".join(f"{key}={in_short(value, _LONGEST_SHOWN)}" for key, value in info.items())
        print(f"\nreward {result.reward}; {values}\n\n{seen}", file=out)
    outcome = "Left" if not done else "Solved" if success_of(info) else "Finished, not solved,"
    print(f"\n{outcome} after {counted(played, 'action')}, total reward {total:g}.", file=out)


def _ask(lines: TextIO, out: TextIO) -> str | None:
    """The next line that is not empty; None at the end."""
    line = "\n"
    while line and not line.strip():
        print("> ", end="", file=out, flush=True)
        try:
            line = lines.readline()
        except KeyboardInterrupt:
            line = ""
        if not lines.isatty() or not line:
            print(line.rstrip("\r\n"), file=out)
    return None if line.strip().lower() in ("", _QUIT) else line.rstrip("\r\n")


def _state(env: Any, seen: Any) -> str:
    return seen if isinstance(seen, str) else env.render(mode="text")


if __name__ == "__main__":
    sys.exit(main())
