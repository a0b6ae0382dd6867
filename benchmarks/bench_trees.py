"""Success over tokens: the tiny model trained with trees and with chains, until both took the same number of tokens.

``python benchmarks/bench_trees.py [--tokens 500000] [--seeds 2] [--warm-up 200] [--output docs/images/trees.png]``

Both start from the same warmed-up weights of a seed and play ``config/tiny_trees.yaml``: groups of eight trajectories,
as eight chains, or as two trees of four leaves each. Tokens are those of replies, and of prompts that were asked, each
prompt once however many replies it got.
Figures go to a file of JSON beside the picture; with ``--draw`` nothing is trained, and
the picture is drawn from that file again.
"""

from __future__ import annotations

import argparse
import copy
import json
from collections.abc import Iterator
from pathlib import Path
from statistics import fmean
from typing import Any

from ragen.llm_agent.config.loading import load_config

KINDS = {
    "chains": ["es_manager.train.group_size=8", "agent_proxy.branching.max_leaves=1"],  # which counts their tokens too
    "trees, against siblings": [],
    "trees, plain GRPO": ["agent_proxy.branching.advantages=grpo"],
}
COMMON = ["es_manager.use_multiprocessing=false", "es_manager.capsule_dir=null"]
MOMENTS = 12  # at which it is validated, over all tokens


def main() -> None:
    """Train, write the figures, draw."""
    arguments = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    arguments.add_argument("--tokens", type=int, default=500_000, help="of each run")
    arguments.add_argument("--seeds", type=int, default=2)
    arguments.add_argument("--warm-up", type=int, default=200, help="steps of it")
    arguments.add_argument("--output", type=Path, default=Path("docs/images/trees.png"))
    arguments.add_argument("--draw", action="store_true", help="draw what the last call found")
    given = arguments.parse_args()
    figures = given.output.with_suffix(".json")
    if not given.draw:
        runs = list(trained(given.tokens, given.seeds, given.warm_up))
        figures.write_text(json.dumps(runs) + "\n", "utf-8")
    draw(json.loads(figures.read_text("utf-8")), given.output)


def trained(tokens: int, seeds: int, warm_up: int) -> Iterator[dict[str, Any]]:
    """Every kind for every seed; what came of it as a line, and as figures."""
    import torch

    torch.set_num_threads(1)
    for seed in range(seeds):
        keys = [*COMMON, f"trainer.seed={seed}", f"warm_up.steps={warm_up}"]
        model, tokenizer = warmed_up(load_config("tiny_trees", keys))
        for kind, overrides in KINDS.items():
            config = load_config("tiny_trees", [*keys, *overrides])
            points = list(curve(config, copy.deepcopy(model), tokenizer, tokens))
            first, last = points[0], points[-1]
            print(
                f"seed {seed}, {kind}: {first['success']:.3f} -> {last['success']:.3f} after {last['step']} steps, "
                f"{last['tokens']:,.0f} tokens, {last['response_tokens']:,.0f} of them replies, {last['leaves']:,.0f} "
                f"trajectories; as chains these would take {last['chain_tokens']:,.0f}",
                flush=True,
            )
            yield {"seed": seed, "kind": kind, "points": points}


def warmed_up(config: Any) -> tuple[Any, Any]:
    """The model that all kinds of a seed begin with, and its tokenizer."""
    from ragen.llm_agent.tokenizer import load_tokenizer
    from ragen.training.settings import TrainerSettings
    from ragen.training.tiny_model import build_model
    from ragen.training.warm_up import WarmUp, demonstrations

    settings, tokenizer = TrainerSettings.read(config), load_tokenizer()
    model = build_model(settings.model, tokenizer, settings.seed)
    rows = demonstrations(config, tokenizer, settings.warm_up)
    learning = WarmUp(model.train(), rows, settings.warm_up, tokenizer.pad_token_id, settings.seed)
    for step in range(settings.warm_up.steps):
        learning.step(step)
    return model.eval(), tokenizer


def curve(config: Any, model: Any, tokenizer: Any, most: int) -> Iterator[dict[str, float]]:
    """Train until so many tokens were taken; what was validated now and then, with the counts until then."""
    from ragen.training.player import Player, success_metrics, tree_totals
    from ragen.training.settings import TrainerSettings
    from ragen.training.training_batch import training_batch
    from ragen.training.updates import Learner

    settings = TrainerSettings.read(config)
    learner, step = Learner(model, settings.updates, settings.seed), 0
    counts = dict.fromkeys(("tokens", "response_tokens", "leaves", "chain_tokens"), 0.0)
    with Player(config, model, tokenizer, settings.seed) as player:
        player.prepare()
        due = 0.0
        while True:
            if counts["tokens"] >= due:
                rates = success_metrics([player.play(val=True)], ["TinyLake"])
                yield {"step": step, "success": rates["success"], **counts}
                due += most / MOMENTS
            if counts["tokens"] >= most:
                return
            played = player.play()
            learner.update(training_batch(played.groups, tokenizer.pad_token_id), step)
            step += 1
            found = tree_totals([played])
            counts["tokens"] += found["tree/prompt_tokens"] + found["tree/response_tokens"]
            counts["response_tokens"] += found["tree/response_tokens"]
            counts["leaves"] += found["tree/leaves"]
            counts["chain_tokens"] += found["tree/chain_prompt_tokens"] + found["tree/chain_response_tokens"]


def draw(runs: list[dict[str, Any]], picture: Path) -> None:
    """Success over all tokens, and over those of replies alone; a thin line a seed, a thick one their mean."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(10, 4), layout="constrained")
    for axes, over, name in zip(
        figure.subplots(1, 2, sharey=True),
        ("tokens", "response_tokens"),
        ("prompts and replies", "replies"),
        strict=True,
    ):
        for place, kind in enumerate(KINDS):
            ways = [run["points"] for run in runs if run["kind"] == kind]
            for points in ways:
                axes.plot(
                    [p[over] for p in points], [p["success"] for p in points], color=f"C{place}", alpha=0.35, lw=0.9
                )
            pairs = list(zip(*ways, strict=False))
            mean = [fmean(p[over] for p in at) for at in pairs], [fmean(p["success"] for p in at) for at in pairs]
            axes.plot(*mean, color=f"C{place}", marker="o", markersize=3, lw=2, label=kind)
        axes.set(xlabel=f"tokens of {name}", ylim=(0.4, 1.0))
        axes.grid(alpha=0.3)
    figure.axes[0].set_ylabel("success at validation, in chains")
    figure.axes[0].legend(fontsize=8)
    figure.savefig(picture, dpi=110)
    print(f"picture in {picture}")


if __name__ == "__main__":
    main()
