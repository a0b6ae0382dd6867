"""Shared by commands that take a configuration: arguments, sweeps, messages and exit codes.

The arguments are Hydra's: ``--config-name``, ``--config-path``, ``--cfg job``, ``-m`` for a sweep
(``seed=1,2,3``, ``range(1,4)``, ``glob(*)``), and ``key=value``. The runs of a sweep are sequential, each in a folder
below ``output_dir`` named after its own overrides, so that a repeated sweep finds the same folders.
"""

from __future__ import annotations

import argparse
import itertools
import re
import sys
from collections.abc import Callable, Iterable, Sequence
from contextvars import ContextVar
from datetime import datetime
from hashlib import sha256
from typing import TYPE_CHECKING, Any

from ragen.commands import FAILED, REFUSED, STOPPED, CommandParser
from ragen.errors import ConfigError, MissingExtraError, RagenError, did_you_mean, one_line
from ragen.output import command_output, printable, shown_override, shown_settings

if TYPE_CHECKING:
    from ragen.config.schema import Config

Compose = Callable[[str, Sequence[str], str | None], Any]
"""Composes a configuration from a name, overrides and a folder."""
_NOW = re.compile(r"\$\{now:([^}]*)\}")
LONGEST_NAME = 100
"""Maximum number of characters in the name of a run's folder."""
_LONGEST = 4000  # maximum characters of an error message, which may quote text from elsewhere
_called: ContextVar[tuple[str, ...]] = ContextVar("called", default=())


def called_as() -> tuple[str, ...]:
    """The program and arguments of the running command; empty if there is none."""
    return _called.get()


def add_config_arguments(parser: argparse.ArgumentParser, default: str | None = None) -> None:
    """Let a command take ``--config-name``, ``--config-path`` and ``key=value``.

    Args:
        parser: The command's parser.
        default: The default configuration; None requires the option.
    """
    which = "a configuration, such as _2_sokoban" if default is None else "a configuration (default: %(default)s)"
    parser.add_argument("-cn", "--config-name", required=default is None, default=default, help=which)
    parser.add_argument("-cp", "--config-path", metavar="FOLDER", help="its folder (default: the package's own)")
    parser.add_argument("overrides", nargs="*", default=[], metavar="key=value", help="overrides, in Hydra's syntax")
    if isinstance(parser, CommandParser):
        parser.settings = command_keys


def add_sweep_argument(parser: argparse.ArgumentParser) -> None:
    """Add ``-m``, for commands whose runs write to ``output_dir``."""
    parser.add_argument(
        "-m", "--multirun", action="store_true", help="a sweep: one run per value of key=a,b,c, one after the other"
    )


def command_keys() -> Iterable[str]:
    """The keys that commands can set."""
    from ragen.config.loading import known_keys

    return [key for key in known_keys() if "<" not in key]


def add_choice_arguments(parser: argparse.ArgumentParser) -> None:
    """Add ``--tags`` and ``--limit``; see :func:`narrow`."""
    parser.add_argument("--tags", metavar="A,B", help="play only these tags of the configuration")
    parser.add_argument("--limit", metavar="N", help="play at most this many groups per tag")


def narrow(config: Any, tags: str | None = None, limit: str | None = None) -> None:
    """Keep only some tags, and some groups of each, in the mode's section of ``es_manager``.

    Groups keep their seeds, so that a part of an evaluation can be compared with the whole, seed by seed.

    Args:
        config: The composed configuration, changed in place.
        tags: Their names, separated by commas; None for all.
        limit: Maximum number of groups per tag; None for all.

    Raises:
        ConfigError: There is no such tag, or the limit is not a whole number of at least 1.
    """
    if tags is None and limit is None:
        return
    from omegaconf import OmegaConf

    from envlanes.ragen.settings import read_groups
    from ragen.config.loading import as_config

    if limit is not None and not (limit.isdecimal() and int(limit) > 0):
        raise ConfigError(f"--limit is {limit!r}; expected a whole number of at least 1.")
    whole = as_config(config)
    where, part = f"es_manager.{whole.mode}", whole.select(f"es_manager.{whole.mode}")
    groups = read_groups(part.model_dump(), where)
    known = [each.tag for each in groups]
    wanted = known if tags is None else [tag.strip() for tag in tags.split(",")]
    for tag in wanted:
        if tag not in known:
            meant = did_you_mean(tag, known) or f" It has {', '.join(known)}."
            raise ConfigError(f"--tags has {tag!r}, which is not in {where}.env_configs.tags.{meant}")
    left = [(tag, min(count, int(limit or count)), first) for tag, count, first in groups if tag in wanted]
    for place, name in enumerate(("tags", "n_groups", "first_groups")):
        OmegaConf.update(config, f"{where}.env_configs.{name}", [each[place] for each in left], force_add=True)
    OmegaConf.update(config, f"{where}.env_groups", sum(count for _, count, _ in left))


def runs_of(overrides: Sequence[str]) -> list[tuple[tuple[str, ...], list[str]]]:
    """The runs of a sweep, in Hydra's order: the last key changes fastest.

    Args:
        overrides: Some of them with several values.

    Returns:
        Each run's own overrides, and all of its overrides.

    Raises:
        ConfigError: An override cannot be read, or none has several values.
    """
    from hydra.core.override_parser.overrides_parser import OverridesParser
    from hydra.errors import HydraException

    from ragen.config.loading import quoted

    try:
        alone = [each if "," in each else quoted(each) for each in overrides]
        parsed = OverridesParser.create().parse_overrides(alone)
    except HydraException as error:
        raise ConfigError(f"the sweep cannot be read: {printable(one_line(error), _LONGEST)}") from error
    swept = [
        [f"{each.get_key_element()}={value}" for value in each.sweep_string_iterator()]
        for each in parsed
        if each.is_sweep_override()
    ]
    if not swept:
        raise ConfigError("-m (--multirun) is given, but no key has several values, as in seed=1,2,3.")
    fixed = [str(each.input_line) for each in parsed if not each.is_sweep_override()]
    return [(own, [*fixed, *own]) for own in itertools.product(*swept)]


def folder_name(overrides: Sequence[str]) -> str:
    """The name of a run's folder, from its own overrides; a shortened name ends with a part of their hash."""
    whole = ",".join(overrides)
    name = re.sub(r"[^\w.,=+-]+", "_", ",".join(map(shown_override, overrides)))[:LONGEST_NAME]
    return name if name == whole else f"{name}-{sha256(whole.encode()).hexdigest()[:8]}"


def main_of(
    parser: Callable[[str], argparse.ArgumentParser],
    prog: str,
    run: Callable[[Config], int],
    compose: Compose,
) -> Callable[..., int]:
    """The ``main`` of a command that takes a configuration.

    Args:
        parser: Creates its parser for a program name.
        prog: The program's name.
        run: Runs the command; returns the exit code.
        compose: Composes the configuration.

    Returns:
        ``main(argv=None, prog=prog)``, which returns the exit code; see :func:`run_command`.
    """

    def main(argv: Sequence[str] | None = None, prog: str = prog) -> int:
        with command_output():
            return run_command(parser(prog), argv, run, compose)

    return main


def run_command(
    parser: argparse.ArgumentParser, argv: Sequence[str] | None, run: Callable[[Config], int], compose: Compose
) -> int:
    """Parse a command's arguments, compose its configuration, and run it, or print it with ``--cfg``.

    Args:
        parser: A parser with :func:`add_config_arguments`; ``--cfg`` is added to it.
        argv: The arguments; None for those of the process.
        run: Runs the command; returns the exit code.
        compose: Composes the configuration.

    Returns:
        The exit code: that of ``run``, or 1 if it failed, 2 for an invalid configuration, 130 after Ctrl-C. For a
        sweep, the first nonzero one, or that of a run which Ctrl-C or SIGTERM ended, and with it the sweep.
    """
    parser.add_argument("-c", "--cfg", action="store_true", help="print the composed configuration and exit")
    parser.set_defaults(verbose=False, multirun=False, tags=None, limit=None)
    words = list(sys.argv[1:] if argv is None else argv)
    arguments = parser.parse_intermixed_args(_without_job(words))
    flags = ["verbose=true"] if arguments.verbose else []
    whole = [*arguments.overrides, *flags]
    if not arguments.multirun:
        return _run(arguments, (parser.prog, *words), whole, run, compose)
    try:
        runs = runs_of(whole)
    except ConfigError as error:
        print(f"error: {error}", file=sys.stderr)
        return REFUSED
    others = [word for word in words if word not in ("-m", "--multirun") and word not in arguments.overrides]
    code, began = 0, datetime.now()
    for number, (own, overrides) in enumerate(runs, 1):
        print(f"run {number} of {len(runs)}: {' '.join(map(shown_override, own))}", file=sys.stderr)
        came = _run(arguments, (parser.prog, *others, *overrides), overrides, run, compose, own, began)
        if came >= STOPPED:
            left = len(runs) - number
            print(f"{left} of {len(runs)} runs were not started; the original command does so.", file=sys.stderr)
            return came
        code = code or came
    return code


def _swept_folder(config: Any, own: Sequence[str], began: datetime) -> str:
    """The folder of a run of a sweep below the configured ``output_dir``.

    It is named after the run's own overrides, without values that are part of ``output_dir`` already; ``${now:..}`` is
    the start of the sweep in all its runs.
    """
    from omegaconf import OmegaConf

    raw = str(OmegaConf.to_container(config, resolve=False)["output_dir"])  # type: ignore[call-overload, index]
    dated = _NOW.sub(lambda found: began.strftime(found[1]), raw)
    special = [each for each in own if f"${{{each.partition('=')[0]}}}" not in raw]
    return f"{dated}/{folder_name(special)}" if special else dated


def _without_job(words: Sequence[str]) -> list[str]:
    """The arguments without Hydra's ``job`` after ``--cfg``, the only kind supported here."""
    return [
        "--cfg" if word == "--cfg=job" else word
        for place, word in enumerate(words)
        if not (word == "job" and place and words[place - 1] in ("--cfg", "-c"))
    ]


def _run(
    arguments: argparse.Namespace,
    called: tuple[str, ...],
    overrides: Sequence[str],
    run: Callable[[Config], int],
    compose: Compose,
    swept: Sequence[str] = (),
    began: datetime | None = None,
) -> int:
    """One run, possibly of a sweep, with its own overrides and the sweep's start."""
    from omegaconf import OmegaConf
    from omegaconf.errors import OmegaConfBaseException

    from ragen.config.loading import as_config

    token = _called.set(called)
    try:
        config = compose(arguments.config_name, overrides, arguments.config_path)
        narrow(config, arguments.tags, arguments.limit)
        if began is not None:
            OmegaConf.update(config, "output_dir", _swept_folder(config, swept, began))
        checked = as_config(config)
        if arguments.cfg:
            said = shown_settings(OmegaConf.to_container(config, resolve=False))
            print(OmegaConf.to_yaml(OmegaConf.create(said)), end="")
            return 0
        return run(checked)
    except (ConfigError, MissingExtraError, OmegaConfBaseException) as error:
        print(f"error: {printable(one_line(error), _LONGEST)}", file=sys.stderr)
        return REFUSED
    except RagenError as error:
        print(f"error: {printable(one_line(error), _LONGEST)}", file=sys.stderr)
        return FAILED
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)
        return STOPPED
    finally:
        _called.reset(token)
