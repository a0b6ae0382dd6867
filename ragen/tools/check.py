"""``ragen check TYPE|module:Class [key=value ...]``: checks whether an environment works in worker processes.

The environment is played in workers, never in this process, with deadlines, so that hanging or crashing is an ordinary
finding. The same episodes are replayed on two objects that take turns, on a used one, on a copy made for a group if its
class supports snapshots, and in other processes with different hash seeds and local dates; if something differs there,
the cause is isolated by changing one condition at a time. Further seeds are played once, since what fails may be rare.
Random numbers, leaks, memory and costs are checked as well.

Exit codes: 0 nothing to fix, 1 something must be fixed first, 2 the arguments are wrong.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from ragen.commands import CommandParser, check_no_option, positive, refusing
from ragen.env.fields import check_kinds, field_types, read_settings
from ragen.env.registry import resolve_env, warn_of_another_package
from ragen.errors import ConfigError, InputError
from ragen.output import new_console
from ragen.parallel.episode.spec import EnvSpec
from ragen.tools.check_report import CheckReport
from ragen.tools.examination import Examination

NOTHING_TO_FIX, FIX_FIRST = 0, 1
_NOT_ARGUMENTS = ("type", "settings", "stacks", "json")


def check_parallel(
    env: str | type,
    config: Any = None,
    *,
    seeds: int = 3,
    turns: int = 8,
    actions: Sequence[str] = (),
    timeout: float = 30.0,
    budget: float = 3.0,
    on_check: Callable[[str], object] | None = None,
) -> CheckReport:
    """Check whether an environment can be stepped in worker processes, and whether that pays off.

    Args:
        env: A class, a registered name, or a ``"package.module:Class"`` path.
        config: The environment's configuration object, or a mapping of its fields.
        seeds: Number of episodes to compare: those of the seeds 1 to ``seeds``.
        turns: Turns per episode.
        actions: Actions to play if the environment has no action names; generic texts by default.
        timeout: Time-out of a reset or turn in seconds.
        budget: Seconds for the first run of these episodes, for further seeds, of which up to 50 are played once, and
            for each measurement; slower ones are cut short.
        on_check: Called with the name of each check that begins.

    Returns:
        The findings, and the recommended line of the configuration.

    Raises:
        ConfigError: The configuration does not match the environment.
        InputError: ``seeds`` or ``turns`` is below 1, or ``actions`` is a single text.
        UnknownEnvError: There is no such environment.
    """
    for name, count in {"seeds": seeds, "turns": turns}.items():
        if count < 1:
            raise InputError(f"{name} = {count}: expected a number of at least 1.")
    if isinstance(actions, str):
        raise InputError(f"actions = {actions!r}: expected a list of texts.")
    spec = _spec_of(env, config)
    return Examination(spec, range(1, 1 + seeds), turns, actions, timeout, budget).run(on_check)


def _spec_of(env: str | type, config: Any) -> EnvSpec:
    env_class, config_class = resolve_env(env) if isinstance(env, str) else (env, getattr(env, "config_class", None))
    fields: dict[str, Any] = {}
    if config is None or isinstance(config, Mapping):
        fields |= config or {}
        try:
            config = config_class(**fields) if config_class is not None else fields or None
        except (TypeError, ValueError) as error:
            raise ConfigError(f"{env}: the configuration {fields!r} does not fit: {error}") from error
    spec = EnvSpec.of(env_class, config, tag="check")
    check_kinds("", spec.env_type, spec.config, fields)
    return replace(spec, env_type=env) if isinstance(env, str) else spec


def parser(prog: str = "python -m ragen.tools.check") -> argparse.ArgumentParser:
    """The argument parser."""
    top = CommandParser(
        prog=prog,
        description="Does an environment work in worker processes, and do they pay off? Exit codes: 0 nothing to fix, "
        "1 something must be fixed first, 2 the arguments are wrong.",
        examples=(f"{prog} sokoban dim_x=8 --seeds 5",),
    )
    add = top.add_argument
    add("type", help="a registered type, or package.module:Class")
    add("settings", nargs="*", default=[], metavar="key=value", help="a key of env_config, such as dim_x=8")
    add("--seeds", type=positive, default=3, metavar="N", help="episodes to compare, with the seeds 1 to N (default 3)")
    add("--turns", type=positive, default=8, metavar="N", help="turns per episode (default 8)")
    add("--actions", nargs="+", default=(), metavar="TEXT", help="actions to play if actions are texts")
    add("--timeout", type=float, default=30.0, metavar="SECONDS", help="time limit of a reset or turn (default 30)")
    add(
        "--budget",
        type=float,
        default=3.0,
        metavar="SECONDS",
        help="time for playing and for each measurement (default 3)",
    )
    add("--stacks", action="store_true", help="show tracebacks and stacks of failures")
    add("--json", action="store_true", help="print the findings in the format of OpenEnv's validation reports")
    return top


def _tell(check: str) -> None:
    """On a terminal, show the check that is under way, in place of the last one; "" removes it."""
    if sys.stderr.isatty():
        print(f"\r\x1b[K{check and f'checking: {check} ...'}", end="", file=sys.stderr, flush=True)


@refusing
def main(arguments: list[str] | None = None, prog: str = "python -m ragen.tools.check") -> int:
    """Run the command; returns one of the exit codes above."""
    top = parser(prog)
    options = vars(top.parse_intermixed_args(arguments))
    env_type, settings, with_stories, as_json = map(options.pop, _NOT_ARGUMENTS)
    env_class, config_class = resolve_env(env_type)
    if env_class.__module__.startswith("ragen."):
        warn_of_another_package()
    known = field_types(config_class)
    check_no_option(top, settings, lambda name, _: name in known)
    fields = read_settings(env_type, config_class, settings)
    try:
        report = check_parallel(env_type, fields, on_check=_tell, **options)
    finally:
        _tell("")
    if as_json:
        print(report.as_json())
        return NOTHING_TO_FIX if report.ok else FIX_FIRST
    console = new_console()
    console.print(report)
    if with_stories and (stories := report.stories()):
        console.print(stories, markup=False, highlight=False)
    return NOTHING_TO_FIX if report.ok else FIX_FIRST


if __name__ == "__main__":
    sys.exit(main())
