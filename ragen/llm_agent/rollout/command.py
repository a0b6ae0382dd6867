"""The command ``python -m ragen.llm_agent.agent_proxy [--config-name NAME] [key=value ...]``.

It plays one rollout, shows its progress, prints tables of results, and writes each finished trajectory to
``rollouts.jsonl`` at once, and the results to ``results.json``. Replies are written to ``journal.jsonl`` as they
arrive. With ``resume: true`` it resumes a stopped or killed run of the same ``output_dir``.

Hydra only composes the configuration: it creates no folder, and does not change the directory.
"""

from __future__ import annotations

import argparse
import base64
import io
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ragen.commands import FAILED, CommandParser
from ragen.config.command_line import (
    add_choice_arguments,
    add_config_arguments,
    add_sweep_argument,
    main_of,
)
from ragen.config.loading import DATED, as_config, compose, override_key
from ragen.errors import (
    BackendError,
    ConfigError,
    LimitReachedError,
    LimitUnmeasuredError,
    StorageError,
    counted,
    shown_path,
)
from ragen.files import json_text, write_whole
from ragen.llm_agent.backends.batch import read_sampling
from ragen.llm_agent.rollout.progress import RolloutProgress, spent
from ragen.llm_agent.rollout.proxy import LLMAgentProxy
from ragen.llm_agent.rollout.rollout_file import describe_run
from ragen.llm_agent.rollout.stopping import (
    Stop,
    command_that_goes_on,
    read_limits,
    sigterm_as_ctrl_c,
    wait_for_replies,
    watch,
)
from ragen.llm_agent.rollout.stopping import (
    raised as raise_limit,
)
from ragen.output import new_console, printable
from ragen.results.rows import JUDGED, PAGE, RESULTS, TIMES, outcome, read_rows, unfinished
from ragen.validity import is_valid

if TYPE_CHECKING:
    from rich.console import Console

    from ragen.config.schema import Limits
    from ragen.llm_agent.rollout.rollout_file import RolloutFile
    from ragen.results.figures import TagResult

PROG = "python -m ragen.llm_agent.agent_proxy"
DEFAULT_CONFIG = "mixed"
SAYS_LITTLE = 3
"""Exit code for missing replies, or if environments failed in more than
``MOST_ENV_ERRORS`` of the episodes."""
MOST_ENV_ERRORS = 0.05
LIMIT_REACHED = 4
"""Exit code of a rollout ended by a limit."""
_CODES = {
    LimitUnmeasuredError: FAILED,
    LimitReachedError: LIMIT_REACHED,
    StorageError: FAILED,
}
"""Exit codes of what ends a rollout early, special cases first; a signal has its own."""
_ROLLOUT = "actor_rollout_ref.rollout"
MOST_IMAGES = 12_000_000  # characters of data URIs in a page; further images are omitted


def parser(prog: str = PROG) -> argparse.ArgumentParser:
    """The command line, under this name."""
    top = CommandParser(
        prog=prog,
        description="Play one rollout: an actor answers prompts, environments are stepped, results are printed and the "
        "trajectories written to rollouts.jsonl. es_manager.val is played, or es_manager.train with mode=train.",
        examples=(
            f"{prog} --config-name _2_sokoban es_manager.max_workers=4",
            f"{prog} actor.scripted.malformed=0.2 output_dir=outputs/sloppy",
        ),
    )
    add_arguments(top, DEFAULT_CONFIG)
    return top


def add_arguments(parser: argparse.ArgumentParser, default: str) -> None:
    """Add what a command that plays rollouts takes; see :func:`add_config_arguments` for the default."""
    add_config_arguments(parser, default)
    add_sweep_argument(parser)
    add_choice_arguments(parser)
    parser.add_argument(
        "-v", "--verbose", action="store_true", help="also show where the time went, what each worker did, and why"
    )


def run(config: Any) -> int:
    """Play one rollout of ``config.mode``, print the results, and write ``rollouts.jsonl`` to ``output_dir``.

    Returns:
        The exit code: 0; 1 if the folder cannot be written to or a limit cannot be kept, 3 if replies are missing
        or too many environments failed for a meaningful result, 4 if a limit ended
        the run, 130 after Ctrl-C, 143 after SIGTERM.

    Raises:
        ConfigError: The configuration is invalid; no environment was built.
        RagenError: The rollout failed.
    """
    from ragen.llm_agent.backends.factory import backend_class, create_backend, create_tokenizer
    from ragen.llm_agent.environments import check_extras, read_config
    from ragen.llm_agent.prompts.settings import ContextSettings
    from ragen.llm_agent.rollout.rollout_file import RolloutFile, about_run

    config = as_config(config)
    mode = config.mode
    path = Path(config.output_dir).absolute() / "rollouts.jsonl"  # an environment may change the working directory
    read_sampling(config, mode == "val")
    ContextSettings.read(config)
    limits = read_limits(config)
    backend_class(config.actor.backend)
    check_extras(read_config(config, mode))  # read again below: cheap checks come before slow imports
    file = RolloutFile(path, about_run(config, mode), config.resume)
    tokenizer = create_tokenizer(config, light=not config.use_parallel_envs)
    backend = create_backend(config, tokenizer)
    try:
        with LLMAgentProxy(config, backend, tokenizer) as proxy:
            played = Run(proxy, file)
            with file, sigterm_as_ctrl_c() as stop:
                try:
                    played.play(limits)
                except (KeyboardInterrupt, LimitReachedError, StorageError) as why:
                    played.report_kept(why, stop)
                    return next((code for error, code in _CODES.items() if isinstance(why, error)), stop.code)
                code = played.finish()
                if config.report:
                    played.write_page()
                last_words = played.last_words()
        for line in last_words:  # after closing the environments, which may log counted failures
            print(line)
        return code
    finally:
        backend.close()


def composed(name: str, overrides: Sequence[str] = (), directory: str | None = None) -> Any:
    """See :func:`~ragen.config.loading.compose`; a sampling parameter that has no effect is refused.

    Raises:
        ConfigError: It was overridden, and in validations ``val_kwargs`` take precedence.
    """
    config = compose(name, overrides, directory)
    whole, given = as_config(config), {*map(override_key, overrides)}
    for name, value in whole.actor_rollout_ref.rollout.val_kwargs if whole.mode == "val" else ():
        key, own = f"{_ROLLOUT}.{name}", f"{_ROLLOUT}.val_kwargs.{name}"
        if key in given and own not in given and value not in (None, whole.select(key)):
            raise ConfigError(f"{key} has no effect with mode=val, which samples with {own}={value}: set that.")
    return config


def resumable(name: str, overrides: Sequence[str] = (), directory: str | None = None) -> Any:
    """See :func:`composed`; a run can only be resumed in the folder that it wrote to.

    Raises:
        ConfigError: ``resume`` is true, and ``output_dir`` is a new folder for each run.
    """
    from omegaconf import OmegaConf

    config = composed(name, overrides, directory)
    written: Any = OmegaConf.to_container(config, resolve=False)
    if written.get("resume") is True and written.get("output_dir") == DATED:
        raise ConfigError("resume=true needs the folder of the run that is to go on: output_dir=FOLDER.")
    return config


main = main_of(parser, PROG, run, resumable)
"""Runs the command.

Returns the exit code: 0, 1 if the rollout failed, 2 for an invalid configuration, 3 if a trajectory ended without a
reply, or environments failed in more than 5 % of the episodes, 4 if a limit ended it,
130 after Ctrl-C, 143 after SIGTERM.
"""


class Run:
    """One rollout of the command, from its plan to its last lines."""

    def __init__(self, proxy: LLMAgentProxy, file: RolloutFile) -> None:
        """Create the environments, whose configuration is thereby checked."""
        self.proxy, self.file, self.config, self.seconds = proxy, file, proxy.config, 0.0
        self.actor: Any = proxy.actor
        self.es_manager, _ = proxy.prepare(self.config.mode == "val")
        self.envs = len(self.es_manager.envs)

    def play(self, limits: Limits) -> None:
        """Play the missing episodes. Replies under way are kept however it ends."""
        self.file.begin(describe_run(self.config))
        self.actor.journal = self.file.open_journal()
        self._report_plan()
        start = time.perf_counter()
        try:
            if len(self.file.kept) < self.envs:
                self._play(watch(limits, lambda: self.actor.usage))
        finally:
            wait_for_replies(self.actor)
            self.file.count(self.actor.usage)
        self.seconds = time.perf_counter() - start

    def _report_plan(self) -> None:
        """Print the plan of the run and its output file."""
        kept, replies = len(self.file.kept), self.actor.journal.replies
        tags = dict.fromkeys(entry["tag"] for entry in self.es_manager.envs)
        answered = f", answered by {self.actor.title or self.config.actor.backend}" if kept < self.envs else ""
        lines = [
            f"{counted(self.envs, 'trajectory', 'trajectories')} of {', '.join(tags)}, up to "
            f"{counted(self.proxy.max_turn, 'turn', 'turns')} each{answered}; rows go to {shown_path(self.file.path)}"
        ]
        if self.file.set_aside is not None:
            lines.append(f"the files of the previous run are now in {shown_path(self.file.set_aside)}")
        if kept == self.envs:
            lines.append("all of them are finished, so no request is sent; resume=false starts over")
        elif kept or replies:
            known = f", and {counted(replies, 'reply is', 'replies are')} recorded" if replies else ""
            lines.append(f"{counted(kept, 'is', 'are')} already finished{known}; continuing with the rest")
        print(*lines, sep="\n", file=sys.stderr)

    def _play(self, check: Callable[[], None]) -> None:
        """Play the episodes that the file lacks; each is written as soon as it is finished."""
        from ragen.llm_agent.rollout.trajectories import trajectories

        mode, val = self.config.mode, self.config.mode == "val"
        known = [record["success"] for record in self.file.kept.values() if outcome(record) == JUDGED]
        earlier = len(self.file.kept), len(known), sum(map(bool, known))
        progress = RolloutProgress(self.actor.activity, lambda: self.actor.usage, self.envs, earlier)

        def on_over(states: list[dict[str, Any]]) -> None:
            if states:
                self.file.add(trajectories(self.proxy, mode, states))
                self.file.count(self.actor.usage)  # a run that is killed is told by it, up to here
                judged = [each for each in states if is_valid(each) and each["env_id"] not in self.proxy.failures]
                succeeded = sum(state["metrics"].get(f"{state['tag']}/success", 0.0) >= 1 for state in judged)
                progress.over(len(states), len(judged), succeeded)

        with progress.shown():
            # no training batch, since it would not be used
            self.proxy.play({"validate": val}, val, check, on_over, self.file.kept)

    def report_kept(self, why: BaseException, stop: Stop) -> None:
        """Print why the run ends, what is saved, and how to resume."""
        reason, further = "terminated" if stop.is_terminated else "interrupted", ""
        if isinstance(why, LimitReachedError | StorageError):
            reason = printable(str(why)).removesuffix(".")
        raised: dict[str, str] = {}
        if isinstance(why, LimitUnmeasuredError):
            raised, further = dict.fromkeys(why.keys, "null"), ", without it"
        elif isinstance(why, LimitReachedError):  # replies that were pending count too
            used = self.actor.usage
            if raised := raise_limit(self.config.limit, why.key, used):
                further = ", with as much again"
            reason += f": {told} so far" if (told := ", ".join(spent(used).values())) else ""
        finished = counted(self.file.written, "finished trajectory", "finished trajectories")
        replies = "" if self.file.journal is None else f" and {counted(self.file.journal.replies, 'reply', 'replies')}"
        print(f"{reason}; saved in {shown_path(self.file.path.parent)}: {finished}{replies}", file=sys.stderr)
        if command := command_that_goes_on(self.config, raised):
            print(f"to resume{further}: {command}", file=sys.stderr)

    def finish(self) -> int:
        """Sort the file, and print the results; returns the exit code."""
        from ragen.results.figures import evaluate, write_results
        from ragen.results.tables import print_results, summary_lines

        file, proxy, config, usage = self.file, self.proxy, self.config, self.actor.usage
        records = file.finish(config.select(f"es_manager.{config.mode}.group_size"))
        results = evaluate(records)
        write_results(results, usage, file.path.with_name(RESULTS))
        if proxy.rollout_states:
            times = {"seconds": {**proxy.seconds, "total": self.seconds}, "work": self.es_manager.work().describe()}
            file.write_beside(TIMES, json_text(times) + "\n")
        console = new_console(is_plain=True)
        print_results(console, results, usage)
        if results[-1].env_errors and (folder := config.es_manager.crash_report_dir) is not None:
            from ragen.tools.crash_report import count_reports

            console.print(count_reports(folder), soft_wrap=True)
        self._report_failures(console, records)
        if told := unfinished(file.path, records):
            console.print(told, soft_wrap=True)
        if proxy.rollout_states and config.verbose:
            for line in summary_lines(proxy.seconds, self.seconds, self.es_manager.lane_stats()):
                console.print(line, soft_wrap=True)
        rows = counted(len(records), "trajectory", "trajectories")
        console.print(f"{rows} in {shown_path(file.path)}", soft_wrap=True)
        return _exit_code(results)

    def _report_failures(self, console: Console, records: Sequence[dict[str, Any]]) -> None:
        """Print the number of trajectories without a reply, and of those that ran out of context.

        Raises:
            BackendError: No trajectory got a reply.
        """
        missing = [record["error"] for record in records if "error" in record]
        full = [record["out_of_context"] for record in records if "out_of_context" in record]
        command = command_that_goes_on(self.config)
        if len(missing) + len(full) == len(records) and not any(record["actions"] for record in records):
            again = f" To try again: {command}" if command else ""
            raise BackendError(f"no prompt got a reply: {printable([*missing, *full][0])}.{again}")
        for reasons, what in ((full, "ended out of context, and count"), (missing, "ended without a reply")):
            if reasons:
                told = f"{counted(len(reasons), 'trajectory', 'trajectories')} {what}; the first: {reasons[0]}"
                console.print(printable(told), soft_wrap=True)
        if missing and command:
            console.print(f"to request them again: {command}", soft_wrap=True)

    def last_words(self) -> list[str]:
        """The last lines: tags that are not deterministic or not restored, and the time saved by workers."""
        differing = self.es_manager.not_deterministic()
        lines = [
            f"{tag} is not deterministic: a replay of its actions gave something else, so its results change from run "
            f"to run; ragen check {env_type} says where"
            for tag, env_type in differing.items()
        ]
        lines += [
            f"{tag} is not restored by its save() and load(): an episode that goes on from a snapshot, as after the "
            f"loss of a worker, may go on differently; ragen check {env_type} says where"
            for tag, env_type in self.es_manager.not_restored().items()
            if tag not in differing  # a faithful load() cannot help that
        ]
        return [*lines, self.es_manager.work().describe()] if self.proxy.rollout_states else lines

    def write_page(self) -> None:
        """Write ``report.html`` beside the trajectories, with the images that this process has."""
        from ragen.results.page import render  # late, so that help comes at once

        path = self.file.path.with_name(PAGE)
        room, images = MOST_IMAGES, dict[int, list[list[str]]]()
        for state in self.proxy.rollout_states:
            shown = [list(map(_data_uri, turn.get("images", ()))) for turn in state["history"]]
            room -= sum(len(each) for turn in shown for each in turn)
            if any(shown) and room > 0:
                images[state["env_id"]] = shown
        try:
            write_whole(path, render(self.file.path, read_rows(self.file.path), images))
        except OSError as error:
            raise ConfigError(f"the report cannot be written to {path}: {error.strerror}.") from error
        print(f"report in {shown_path(path)}")


def _exit_code(results: Sequence[TagResult]) -> int:
    """0, or ``SAYS_LITTLE`` with the reason on standard error."""
    whole = results[-1]
    share = whole.env_errors / whole.episodes
    if share <= MOST_ENV_ERRORS:
        return SAYS_LITTLE if whole.missing_replies else 0
    print(
        f"environments failed in {share:.1%} of the episodes, more than {MOST_ENV_ERRORS:.0%}: what is left says "
        "little about the model; see 'env_error' in the rows.",
        file=sys.stderr,
    )
    return SAYS_LITTLE


def _data_uri(image: Any) -> str:
    file = io.BytesIO()
    image.save(file, "PNG", optimize=False)
    return f"data:image/png;base64,{base64.b64encode(file.getvalue()).decode()}"
