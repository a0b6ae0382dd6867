"""``python -m ragen.cage2 search [key=value ...]``: searches for the workflow whose defender earns most.

The first Ctrl-C stops after the current update; finished workflows are saved. A second one stops at once. To resume,
run the same command with the printed ``checkpoint_dir=FOLDER``; the results are the same as without the interruption.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING

from ragen.commands import FAILED, STOPPED, CommandParser, LogLines, StopRequest, refusing
from ragen.errors import EnvError

if TYPE_CHECKING:
    from ragen.cage2.trainer import ParallelWorkflowRLTrainer, Progress


@refusing
def main(arguments: Sequence[str] | None = None, prog: str = "python -m ragen.cage2 search") -> int:
    """Run the command; returns 0, 1 if an environment failed, 2 for an invalid configuration, 130 if stopped."""
    parser = CommandParser(
        prog=prog,
        description="Search for the order of fixing whose defender earns most.",
        examples=(f"{prog} n_workflows=2 train_episodes_per_env=4",),
    )
    parser.add_argument("--quiet", action="store_true", help="no progress bar")
    parser.add_argument("overrides", nargs="*", default=[], metavar="key=value", help="such as n_workflows=6, seed=1")
    options = parser.parse_args(arguments)
    from ragen.cage2.settings import load_settings

    try:
        settings = load_settings(options.overrides)
        from ragen.cage2.trainer import ParallelWorkflowRLTrainer

        with StopRequest() as stop:
            return _search(ParallelWorkflowRLTrainer(**asdict(settings)), stop, options.quiet)
    except KeyboardInterrupt:
        print("stopped at once; workflows that were finished are saved", file=sys.stderr)
        return STOPPED
    except EnvError as error:
        print(f"error: {error}", file=sys.stderr)
        return FAILED


def _search(trainer: ParallelWorkflowRLTrainer, stop: StopRequest, quiet: bool) -> int:
    from tqdm import tqdm

    from ragen.cage2.results import Comparison, table
    from ragen.cage2.workflow import order_text

    cap = trainer.settings.train_episodes_per_env
    lines, total = LogLines(), trainer.settings.n_workflows * cap
    with tqdm(total=total, disable=quiet or lines.is_log, unit="ep", file=sys.stderr) as bar:
        played = {result.iteration: cap for result in trainer.results}
        before = sum(played.values())

        def news(progress: Progress) -> None:
            played[progress.iteration] = cap if progress.is_done else min(progress.played, cap)
            bar.n = sum(played.values())
            reward, rate = progress.update["reward"], progress.update["compliance"]
            seen = "" if reward is None or rate is None else f": return {reward:.0f}, compliance {rate:.2f}"
            text = f"#{progress.iteration} {order_text(progress.workflow)}{seen}"
            bar.set_postfix_str(text)
            if not quiet:
                lines.report(text, sum(played.values()), total, before)

        bar.n = sum(played.values())
        trainer.run_workflow_search(news, lambda: stop.wanted)
    if trainer.results:
        print(table(trainer.results))
        if len(trainer.results) > 1:
            print(Comparison.of(trainer.results).lines())
            belief, orders = trainer.search.belief(), trainer.search.manager.orders
            top = int(belief.mean.argmax())
            print(
                f"believed best of all 120: {order_text(orders[top])}: {belief.mean[top]:.1f} ± {belief.std[top]:.1f}"
            )
        for result in trainer.results:
            if result.failed_episodes:
                by_type = ", ".join(f"{count} {name}" for name, count in result.failures.items())
                print(f"#{result.iteration}: environments failed in {result.failed_episodes} episodes: {by_type}")
        print(f"written to {trainer.draw().parent}: results.json, returns_by_order.png, policies/")
    if not trainer.is_done:
        print(f"stopped; to resume: the same command with checkpoint_dir={trainer.folder}")
    if trainer.work is not None:
        print(trainer.work.describe())
    return 0 if trainer.is_done else STOPPED
