"""``python -m ragen.meta --config-name bandit [key=value ...]``: trains an agent that learns how to learn.

The first Ctrl-C finishes the iteration and saves; a second one stops at once. To resume, run the same command with the
printed ``output_dir=FOLDER``.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING

from ragen.commands import STOPPED, CommandParser, LogLines, StopRequest, refusing
from ragen.errors import shown_path
from ragen.meta.rl2.settings import config_names, load_settings

if TYPE_CHECKING:
    from ragen.meta.rl2.trainer import Trainer


PROG = "python -m ragen.meta"


def parser(prog: str = PROG) -> argparse.ArgumentParser:
    """The command line, under this name."""
    top = CommandParser(
        prog=prog,
        description="Train an agent that learns how to learn, on many tasks at once.",
        examples=(f"{prog} --config-name bandit seed=1",),
    )
    top.add_argument(
        "--config-name", default="bandit", help=f"one of: {', '.join(config_names())} (default: %(default)s)"
    )
    top.add_argument("--quiet", action="store_true", help="no progress bar")
    top.add_argument("overrides", nargs="*", default=[], metavar="key=value", help="such as seed=1, ppo.lr=3e-4")
    return top


@refusing
def main(arguments: Sequence[str] | None = None, prog: str = PROG) -> int:
    """Run the command; returns its exit status: 0, 2 for an invalid configuration, 130 if it was stopped."""
    options = parser(prog).parse_args(arguments)
    try:
        settings = load_settings(options.config_name, options.overrides)
        from ragen.meta.rl2.trainer import Trainer

        with StopRequest() as stop, Trainer(settings) as trainer:
            return _train(trainer, stop, options.quiet)
    except KeyboardInterrupt:
        print("stopped at once, without saving", file=sys.stderr)
        return STOPPED


def _train(trainer: Trainer, stop: StopRequest, quiet: bool) -> int:
    from tqdm import tqdm

    first, total = trainer.iteration, trainer.settings.iterations
    lines = LogLines()
    with tqdm(total=total, initial=first, disable=quiet or lines.is_log, unit="it", file=sys.stderr) as bar:

        def news(iteration: int, metrics: dict[str, float]) -> None:
            bar.update()
            text = f"{trainer.measure} {metrics['train']:.2f}, {metrics['steps_per_s']:.0f} steps/s"
            bar.set_postfix_str(text)
            if not quiet:
                lines.report(text, iteration, total, first)
            if "eval" in metrics:
                beside = ", ".join(f"{name} {value:.2f}" for name, value in trainer.bars.items())
                line = f"iteration {iteration:4d}: {trainer.measure} {metrics['eval']:.2f} ({beside})"
                bar.write(line, file=sys.stdout)

        is_done = trainer.run(news, lambda: stop.wanted)
    print(f"written to {shown_path(trainer.folder)}: metrics.jsonl, bars.json, learning_curve.png, checkpoints/")
    if not is_done:
        print(f"stopped; to resume: the same command with output_dir={shown_path(trainer.folder)}")
    print(trainer.work().describe())
    return 0 if is_done else STOPPED
