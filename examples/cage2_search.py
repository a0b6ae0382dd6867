"""Searches for the order of fixing hosts whose defender earns most in CAGE Challenge 2, and prints all results.

    python examples/cage2_search.py n_workflows=6 train_episodes_per_env=20 [key=value ...]

``SearchSettings`` in ``ragen/cage2/trainer.py`` explains every key. To resume an interrupted search, run the same
command with the printed ``checkpoint_dir=FOLDER``; the results are the same as without the interruption.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence

from omegaconf import OmegaConf

from ragen.cage2 import ParallelWorkflowRLTrainer
from ragen.cage2.trainer import WorkflowResult, WorkflowTraining
from ragen.commands import refusing


def table(results: Sequence[WorkflowResult]) -> str:
    """All results, the best first."""
    lines = [f"{'':>3} {'return':>8} {'± noise':>8} {'compliance':>10} {'fixes':>6} {'episodes':>8}  workflow"]
    for each in sorted(results, key=lambda result: -result.train_reward):
        numbers = f"{each.train_reward:8.1f} {each.noise:8.1f} {each.train_compliance:10.3f} {each.coverage:6.1f}"
        played = f"{each.avg_episodes_trained:7.1f}{'*' if each.stopped_early else ' '}"
        lines.append(f"{each.iteration:3d} {numbers} {played}  {' > '.join(each.workflow)}")
    return "\n".join(lines)


def report(training: WorkflowTraining) -> None:
    """Print how far a training is."""
    order, cap = " > ".join(training.agent.workflow_order), training.settings.train_episodes_per_env
    print(f"#{training.iteration} {order}: {training.played} of {cap} episodes", file=sys.stderr, flush=True)


@refusing
def main(argv: Sequence[str]) -> int:
    """Search with these settings."""
    trainer = ParallelWorkflowRLTrainer(**OmegaConf.to_container(OmegaConf.from_dotlist(list(argv))))
    try:
        trainer.run_workflow_search(report)
    finally:
        print(f"{table(trainer.results)}\nwritten to checkpoint_dir={trainer.folder}")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
