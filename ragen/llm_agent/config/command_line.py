"""What the commands that take a configuration have in common: arguments, messages and exit codes."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Sequence
from contextvars import ContextVar
from typing import Any

from ragen.commands import FAILED, REFUSED, STOPPED
from ragen.errors import ConfigError, MissingExtraError, RagenError
from ragen.llm_agent.config.loading import load_config, one_line
from ragen.output import CLOSED, output_watched, printable

Compose = Callable[[str, Sequence[str], str | None, str | None], Any]
"""Makes the configuration of a name, overrides, a folder and a further folder."""
_LONGEST = 4000  # characters of an error, which may quote what is not this package's
_called: ContextVar[tuple[str, ...]] = ContextVar("called", default=())


def go_on() -> None:
    """What follows for a command that has work to finish when nobody reads what it prints: nothing."""


def called_as() -> tuple[str, ...]:
    """The command that runs now: its program, and its arguments; empty where none does."""
    return _called.get()


def add_config_arguments(parser: argparse.ArgumentParser, default: str | None = None) -> None:
    """Let a command take ``--config-name``, ``--config-path``, ``--config-dir`` and ``key=value``.

    Args:
        parser: The command's.
        default: The configuration's name where none is given; None asks for one.
    """
    which = "a configuration, such as _2_sokoban" if default is None else "a configuration (default: %(default)s)"
    parser.add_argument("-cn", "--config-name", required=default is None, default=default, help=which)
    parser.add_argument(
        "-cp", "--config-path", metavar="FOLDER", help="where it lies (default: the package's own folder)"
    )
    parser.add_argument(
        "-cd", "--config-dir", metavar="FOLDER", help="a further folder: what the first one lacks is looked for there"
    )
    parser.add_argument(
        "overrides", nargs="*", default=[], metavar="key=value", help="what to change in it, in Hydra's syntax"
    )


def main_of(
    parser: Callable[[str], argparse.ArgumentParser],
    prog: str,
    run: Callable[[Any], int],
    compose: Compose = load_config,
    on_cut: Callable[[], None] = go_on,
) -> Callable[..., int]:
    """The ``main`` of a command that takes a configuration.

    Args:
        parser: Makes its command line, under a name.
        prog: The program's name.
        run: Does what the command is for; returns the exit code.
        compose: Makes the configuration.
        on_cut: Called when nobody reads standard output any more; the command goes on in silence.

    Returns:
        ``main(argv=None, prog=prog)``, which returns the exit code; see :func:`run_command`.
    """

    def main(argv: Sequence[str] | None = None, prog: str = prog) -> int:
        with output_watched(on_cut) as output:
            code = run_command(parser(prog), argv, run, compose)
        return CLOSED if output.is_cut and code == 0 else code

    return main


def run_command(
    parser: argparse.ArgumentParser, argv: Sequence[str] | None, run: Callable[[Any], int], compose: Compose
) -> int:
    """Read a command's arguments, compose its configuration, and run it, or print it where ``--cfg`` asks for that.

    Args:
        parser: With :func:`add_config_arguments`; ``--cfg`` is added to it.
        argv: The arguments; None takes the process's own.
        run: Does what the command is for; returns the exit code.
        compose: Makes the configuration.

    Returns:
        The exit code: that of ``run``, or 1 if it failed, 2 for a configuration that cannot work, 130 after Ctrl-C.
    """
    parser.add_argument("--cfg", action="store_true", help="print the composed configuration, and do nothing else")
    arguments = parser.parse_intermixed_args(argv)
    words = sys.argv[1:] if argv is None else argv
    called = _called.set((parser.prog, *words))
    if getattr(arguments, "no_raw", False):
        arguments.overrides.append("raw=false")
    from omegaconf import OmegaConf
    from omegaconf.errors import OmegaConfBaseException

    try:
        config = compose(arguments.config_name, arguments.overrides, arguments.config_path, arguments.config_dir)
        if arguments.cfg:
            print(OmegaConf.to_yaml(config), end="")
            return 0
        return run(config)
    except (ConfigError, MissingExtraError, OmegaConfBaseException) as error:
        print(f"error: {printable(one_line(error), _LONGEST)}", file=sys.stderr)
        return REFUSED
    except RagenError as error:
        print(f"error: {type(error).__name__}: {printable(one_line(error), _LONGEST)}", file=sys.stderr)
        return FAILED
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)
        return STOPPED
    finally:
        _called.reset(called)
