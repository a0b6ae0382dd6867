"""``python -m ragen.cage2 search [key=value ...]``: searches for the workflow whose defender earns most.

To resume an interrupted search, run the same command with the printed ``checkpoint_dir=FOLDER``; the results are the
same as without the interruption.
"""

import argparse
import sys

from ragen.commands import FAILED, STOPPED, CommandParser, command
from ragen.errors import EnvError

PROG = "python -m ragen.cage2"


def parser(prog: str = PROG) -> argparse.ArgumentParser:
    """The command line, under this name."""
    top = CommandParser(
        prog=prog,
        description="Search for the order of fixing hosts whose defender earns most.",
        examples=(f"{prog} search n_workflows=6",),
    )
    top.add_argument("command", choices=["search"])
    top.add_argument("overrides", nargs="*", default=[], metavar="key=value", help="such as n_workflows=6, seed=1")
    return top


@command(parser, PROG)
def main(options: argparse.Namespace, prog: str) -> int:
    """Run the command; returns 0, 1 if an environment failed, 2 for an invalid configuration, 130 if stopped."""
    from ragen.cage2.settings import load_settings

    settings = load_settings(options.overrides)
    from ragen.cage2.results import table
    from ragen.cage2.trainer import ParallelWorkflowRLTrainer, WorkflowTraining

    def report(training: WorkflowTraining) -> None:
        order, cap = " > ".join(training.agent.workflow_order), settings.train_episodes_per_env
        print(f"#{training.iteration} {order}: {training.played} of {cap} episodes", file=sys.stderr, flush=True)

    trainer = ParallelWorkflowRLTrainer(**dict(settings))
    try:
        trainer.run_workflow_search(report)
    except KeyboardInterrupt:
        return STOPPED
    except EnvError as error:
        print(f"error: {error}", file=sys.stderr)
        return FAILED
    finally:
        print(f"{table(trainer.results)}\nwritten to checkpoint_dir={trainer.folder}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
