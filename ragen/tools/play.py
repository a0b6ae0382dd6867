"""The command ``ragen play TYPE [--seed N] [--image FILE.png] [key=value ...]``: play an environment by hand.

Lines may also come from a pipe. A turn is played as in a rollout, by the same function, with global generators seeded
alike.
"""

from __future__ import annotations

import argparse
import secrets
import sys
import traceback
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, TextIO

from ragen.commands import STOPPED, CommandParser, check_no_option, refusing
from ragen.env.fields import build_env, field_types
from ragen.env.keys import ARROWS, KeyReader, typed
from ragen.env.registry import known_names, resolve_env
from ragen.errors import ConfigError, EnvError, InputError, RagenError, described_with_place
from ragen.parallel.episode.global_rng import EnvRng
from ragen.parallel.episode.turn import RAGEN, Turn, action_lookup
from ragen.returned import success_of
from ragen.seeds import SEED_LIMIT

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
    top.add_argument("type", help=f"{', '.join(sorted(known_names()))}, or package.module:Class")
    top.add_argument(
        "settings", nargs="*", default=[], metavar="key=value", help="a key of env_config, such as dim_x=8"
    )
    top.add_argument("--seed", type=int, help="the level to play; random by default")
    top.add_argument("--mode", choices=("train", "val", "test"), default="train", help="split of the data")
    top.add_argument(
        "--image", type=Path, metavar="FILE.png", help="save an image of the state to this file after every action"
    )
    top.add_argument("--stacks", action="store_true", help="show the traceback of a failure of the environment")
    return top


@refusing
def main(arguments: list[str] | None = None, prog: str = PROG) -> int:
    """Run the command line.

    Args:
        arguments: What follows the program's name; None takes it from the command line.
        prog: The program's name.

    Returns:
        0; or, after a sentence on standard error, 1 if the environment failed, 2 if the arguments are wrong, 130 after
        Ctrl-C, except at the prompt, where it ends the episode.
    """
    top = parser(prog)
    options = top.parse_intermixed_args(arguments)  # options may stand anywhere
    known = field_types(resolve_env(options.type)[1])
    check_no_option(top, options.settings, lambda name, _: name in known)
    try:
        with _failing(options.type, "while it was built"), EnvRng(0).in_place():
            env = build_env(options.type, options.settings)
        try:
            with typed(sys.stdin, sys.stdout) as lines:
                play(env, options.type, lines, sys.stdout, seed=options.seed, mode=options.mode, image=options.image)
        except BaseException:
            with suppress(Exception):  # a second failure would hide the first
                getattr(env, "close", _nothing)()
            raise
        with _failing(options.type, "while it was closed"):
            getattr(env, "close", _nothing)()
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)
        return STOPPED
    except EnvError as error:
        if type(error) is not EnvError or error.__cause__ is None:
            raise
        if options.stacks:
            traceback.print_exception(error.__cause__)
        raise EnvError(f"{error}{'.' if options.stacks else '; --stacks shows the traceback.'}") from error.__cause__
    return 0


def _nothing() -> None:
    """What closing an environment without ``close`` does."""


@contextmanager
def _failing(env_type: str, when: str) -> Iterator[None]:
    """Raise an ``EnvError`` for an exception of the environment's own code."""
    try:
        yield
    except RagenError:
        raise
    except (Exception, SystemExit) as error:
        raise EnvError(f"{env_type} raises {when}: {described_with_place(error)}") from error


def play(
    env: Any,
    env_type: str,
    lines: TextIO,
    out: TextIO,
    seed: int | None = None,
    mode: str = "train",
    image: Path | None = None,
) -> None:
    """Play one episode: show the state, read an action, play it, until it is over, ``quit``, Ctrl-C, or the lines end.

    Args:
        env: The environment; it is reset here.
        env_type: Its name, for what is shown.
        lines: Where the actions come from, one a line.
        out: Where everything is shown.
        seed: The level; None draws one.
        mode: The mode given to ``reset``.
        image: A picture of the state is kept here.

    Raises:
        InputError: A picture is wanted of an environment that has none, or the seed is out of range.
        EnvError: The environment raised it, or a method of its returned a value of the wrong form.
        ConfigError: The picture cannot be written.
    """
    seed = secrets.randbelow(SEED_LIMIT) if seed is None else seed
    rng = EnvRng(seed)
    with _failing(env_type, f"in the reset with seed {seed}"), rng.in_place():
        seen = _state(env, RAGEN.reset(env, seed, {"mode": mode}))
        _keep_picture(env, env_type, image)
    lookup = action_lookup(env)
    keys = " Arrow keys move." if isinstance(lines, KeyReader) and _has_arrows(lookup) else ""
    print(f"{env_type}, seed {seed}. One action per line; {_QUIT!r} or Ctrl-C ends.{keys}", file=out)
    if image is not None:
        print(f"Picture: {image}", file=out)
    print(f"Actions: {_legal(env, lookup)}\n\n{seen}", file=out)
    echo = not lines.isatty()
    played, total, done = 0, 0.0, False
    info: dict[str, Any] = {}
    while not done:
        text = _ask(lines, out, echo)
        if text is None:
            break
        if not text.strip():
            continue
        action = _action(text, lookup)
        if action is None:
            print(f"{text!r} is not one of {_legal(env, lookup)}.", file=out)
            continue
        with _failing(env_type, f"in turn {played + 1} ({action!r})"), rng.in_place():
            result = RAGEN.play(env, Turn((action,), 1))
            seen = _state(env, result.observation)
            _keep_picture(env, env_type, image)
        played, total, done, info = played + 1, total + result.reward, result.done, result.info
        print(f"\nreward {result.reward}; {_described_info(info)}\n\n{seen}", file=out)
    actions = "1 action" if played == 1 else f"{played} actions"
    print(f"\n{_outcome(done, info)} after {actions}, total reward {total:g}.", file=out)


def _legal(env: Any, lookup: dict[int, str] | None) -> str:
    if lookup:
        return ", ".join(f"{name} ({key})" for key, name in lookup.items())
    return getattr(env, "action_hint", "any text")


def _has_arrows(lookup: dict[int, str] | None) -> bool:
    return {name.lower() for name in ARROWS.values()} <= {name.lower() for name in (lookup or {}).values()}


def _ask(lines: TextIO, out: TextIO, echo: bool) -> str | None:
    print("> ", end="", file=out, flush=True)
    try:
        line = lines.readline()
    except KeyboardInterrupt:
        line = ""
    text = line.rstrip("\r\n")
    if echo or not line:
        print(text, file=out)
    return None if not line or text.strip().lower() == _QUIT else text


def _action(text: str, lookup: dict[int, str] | None) -> str | None:
    """The action's name, which may be typed in other letters or as its key; None if there is no such action."""
    if lookup is None:
        return text
    wanted = text.strip().lower()
    for key, name in lookup.items():
        if wanted in (name.lower(), str(key)):
            return name
    return None


def _described_info(info: dict[str, Any]) -> str:
    shown = (f"{key}={value}" for key, value in info.items())
    return ", ".join(text if len(text) <= _LONGEST_SHOWN else f"{text[:_LONGEST_SHOWN]}..." for text in shown)


def _outcome(done: bool, info: dict[str, Any]) -> str:
    if not done:
        return "Left"
    return "Solved" if success_of(info) else "Finished, not solved,"


def _state(env: Any, seen: Any) -> str:
    return seen if isinstance(seen, str) else env.render(mode="text")


def _keep_picture(env: Any, env_type: str, image: Path | None) -> None:
    if image is None:
        return
    seen = env.render()
    if isinstance(seen, str):
        try:
            seen = env.render(mode="rgb_array")
        except (InputError, ConfigError, ValueError, TypeError) as error:
            raise InputError(f"{env_type} has no image observation for --image.") from error
    _save(seen[-1] if isinstance(seen, list) else seen, env_type, image)


def _save(picture: Any, env_type: str, image: Path) -> None:
    from PIL import Image

    try:
        Image.fromarray(picture).save(image)
    except (OSError, ValueError) as error:
        raise ConfigError(
            f"{env_type}: the picture cannot be written to {str(image)!r}: {getattr(error, 'strerror', None) or error}."
        ) from error


if __name__ == "__main__":
    sys.exit(main())
