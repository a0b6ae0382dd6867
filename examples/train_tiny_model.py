"""A model of 160,000 parameters learns two games from nothing, on a laptop, in a few minutes.

Run it with ``python examples/train_tiny_model.py``; what follows is passed on, such as ``trainer.seed=1``.
Checkpoints, the learning curve and a report are in ``output_dir``; the same command goes on from the newest checkpoint.
"""

from __future__ import annotations

import sys

from ragen.cli.main import main as ragen

KEYS = ("output_dir=outputs/example/tiny", "report=true", "trainer.total_training_steps=80")


def main(argv: list[str] | None = None) -> int:
    """Train; the exit code."""
    return ragen(["train", "--config-name", "tiny", *KEYS, *(sys.argv[1:] if argv is None else argv)])


if __name__ == "__main__":
    sys.exit(main())
