"""Two trainings of the tiny model that thinks: one keeps its thoughts about the lake, the other's collapse.

Both begin with the same warm-up. The first is rewarded for reaching the goal. The second is rewarded for every step to
the right, wherever the goal is: a reward that does not depend on the prompt. Its reward rises, every reply has a
thought, and the thoughts are more varied than before: only the mutual information of prompts and thoughts, which falls
to 0 within ten steps, shows that they are about nothing.

Run it with ``python examples/collapse_of_thoughts.py``; what follows is passed on, such as ``trainer.seed=1``. It takes
some minutes of a core's time, and draws ``outputs/example/collapse/collapse.png``.
"""

from __future__ import annotations

import shutil
import sys
from pathlib import Path
from typing import Any

from ragen.cli.main import main as ragen
from ragen.env import register_env, resolve_env

FOLDER = Path("outputs/example/collapse")
RIGHT = 3  # FrozenLake's number of it
RUNS = {"goal": "rewarded for the goal", "right": "rewarded for going right, whatever the prompt"}
KEYS = (
    "agent_proxy.enable_think=true",
    "actor_rollout_ref.rollout.response_length=28",
    "collapse_detection.first_turn_enabled=true",
    "collapse_detection.multi_turn_enabled=true",
    "collapse_detection.compute_freq=3",
    "es_manager.use_multiprocessing=false",
    "es_manager.train.env_configs.tags=[TinyLake]",
    "es_manager.train.env_configs.n_groups=[8]",
    "es_manager.val.env_groups=64",
    "es_manager.val.env_configs.tags=[TinyLake]",
    "es_manager.val.env_configs.n_groups=[64]",
    "trainer.total_training_steps=60",
    "warm_up.random=0.2",
)
PANELS = {
    "collapse_first_turn_sample/mi_seq_estimate": "mutual information of prompts and thoughts, nats",
    "collapse_first_turn_sample/conditional_entropy_seq_est": "entropy of a thought given its prompt, nats",
    "train/reward": "reward",
    "train/success": "success",
}


def going_right(lake: type) -> type:
    """A lake whose reward is 1 for every step to the right and 0 for any other."""

    class RightLake(lake):
        """The same game, rewarded otherwise."""

        def step(self, action: int) -> Any:
            """Move, and be rewarded for where to."""
            state, _, done, info = super().step(action)
            return state, float(action == RIGHT), done, info

    return RightLake


def main(argv: list[str] | None = None) -> int:
    """Train both, and draw; the exit code."""
    given = sys.argv[1:] if argv is None else argv
    lake, config = resolve_env("frozen_lake")
    try:
        for run in RUNS:
            if run == "right":
                register_env("frozen_lake", going_right(lake), config)
                share_warm_up(FOLDER / "goal" / "checkpoints", FOLDER / run / "checkpoints")
            told = [f"output_dir={FOLDER / run}", "trainer.max_ckpt_to_keep=0", *KEYS, *given]
            if code := ragen(["train", "--config-name", "tiny", *told]):
                return code
    finally:
        register_env("frozen_lake", lake, config)
    draw({told: FOLDER / run / "metrics.jsonl" for run, told in RUNS.items()}, FOLDER / "collapse.png")
    return 0


def share_warm_up(source: Path, target: Path) -> None:
    """Have a run go on from another one's warm-up, which rewards have no part in."""
    if not target.exists():
        target.mkdir(parents=True)
        shutil.copy(max(source.glob("warm_up_*.pt")), target)


def draw(runs: dict[str, Path], picture: Path) -> None:
    """Draw what was measured in both, side by side."""
    from matplotlib.figure import Figure

    from ragen.training.curves import read_metrics

    figure = Figure(figsize=(11, 6.4), layout="constrained")
    for axes, (name, title) in zip(figure.subplots(2, 2).flat, PANELS.items(), strict=True):
        for told, path in runs.items():
            lines = [line for line in read_metrics(path) if line["phase"] == "train" and name in line]
            axes.plot([line["step"] for line in lines], [line[name] for line in lines], label=told, linewidth=1.6)
        axes.set(xlabel="step", title=title)
        axes.grid(alpha=0.3)
    figure.axes[0].legend(fontsize=8)
    figure.savefig(picture, dpi=120)


if __name__ == "__main__":
    sys.exit(main())
