"""Success over tokens: the tiny model trained with trees and with chains, until both took the same number of tokens.

``python benchmarks/bench_trees.py [--tokens 250000] [--seeds 0 1] [--output docs/images/trees.png]``

All start from the same warmed-up weights, those of ``trainer.seed: 0``; a seed decides what is drawn. They play
``config/tiny_trees.yaml``: groups of eight trajectories, as eight chains, or as two trees of four leaves each. Tokens
are those of replies, and of prompts that were asked, each prompt once however many replies it got. Every validation is
written to ``trees.jsonl`` beside the picture at once; ``--draw`` trains nothing, and draws what is there.
"""

from __future__ import annotations

import argparse
import copy
import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from statistics import fmean
from typing import Any

from ragen.llm_agent.config.loading import load_config

KINDS = {
    "chains": ["es_manager.train.group_size=8", "agent_proxy.branching.max_leaves=1"],  # which counts their tokens too
    "trees, against siblings": [],
    "trees, plain GRPO": ["agent_proxy.branching.advantages=grpo"],
}
COMMON = ["es_manager.use_multiprocessing=false", "es_manager.crash_report_dir=null"]
MOMENTS = 5  # at which it is validated, over all tokens


def main() -> None:
    """Train, write the figures, draw."""
    arguments = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    arguments.add_argument("--tokens", type=int, default=250_000, help="of each run")
    arguments.add_argument("--seeds", type=int, nargs="+", default=[0, 1])
    arguments.add_argument("--kinds", nargs="+", choices=KINDS, default=list(KINDS))
    arguments.add_argument("--weights", type=Path, help="a run's checkpoints/warm_up_....pt, to warm up no more")
    arguments.add_argument("--output", type=Path, default=Path("docs/images/trees.png"))
    arguments.add_argument("--draw", action="store_true", help="draw what the last call found")
    given = arguments.parse_args()
    figures = given.output.with_suffix(".jsonl")
    if not given.draw:
        with figures.open("w", encoding="utf-8") as file:
            for point in trained(given.tokens, given.seeds, given.kinds, given.weights):
                file.write(json.dumps(point) + "\n")
                file.flush()
    points = [json.loads(line) for line in figures.read_text("utf-8").splitlines()]
    tell(points)
    draw(points, given.output)


def trained(tokens: int, seeds: Sequence[int], kinds: Sequence[str], weights: Path | None) -> Iterator[dict[str, Any]]:
    """The curves of some kinds for every seed, point by point."""
    import torch

    torch.set_num_threads(1)
    model, tokenizer = warmed_up(load_config("tiny_trees", [*COMMON, "trainer.seed=0"]), weights)
    for kind in kinds:
        for seed in seeds:
            config = load_config("tiny_trees", [*COMMON, f"trainer.seed={seed}", *KINDS[kind]])
            for point in curve(config, copy.deepcopy(model), tokenizer, tokens):
                yield {"kind": kind, "seed": seed, **point}


def tell(points: list[dict[str, Any]]) -> None:
    """A line for each curve: where it began, where it ended, and what that took."""
    for (kind, seed), curve_points in curves(points).items():
        first, last = curve_points[0], curve_points[-1]
        print(
            f"{kind}, seed {seed}: {first['success']:.3f} -> {last['success']:.3f} after {last['step']} steps, "
            f"{last['tokens']:,.0f} tokens, {last['response_tokens']:,.0f} of them replies; {last['leaves']:,.0f} "
            f"trajectories, which take {last['chain_tokens']:,.0f} tokens as chains"
        )


def curves(points: list[dict[str, Any]]) -> dict[tuple[str, int], list[dict[str, Any]]]:
    """Points by kind and seed."""
    found: dict[tuple[str, int], list[dict[str, Any]]] = {}
    for point in points:
        found.setdefault((point["kind"], point["seed"]), []).append(point)
    return found


def warmed_up(config: Any, weights: Path | None) -> tuple[Any, Any]:
    """The model that everything begins with, and its tokenizer."""
    import torch

    from ragen.llm_agent.tokenizer import load_tokenizer
    from ragen.training.settings import TrainerSettings
    from ragen.training.tiny_model import build_model
    from ragen.training.warm_up import WarmUp, demonstrations

    settings, tokenizer = TrainerSettings.read(config), load_tokenizer()
    model = build_model(settings.model, tokenizer, settings.seed)
    if weights is not None:
        model.load_state_dict(torch.load(weights, weights_only=False)["model"])
        return model.eval(), tokenizer
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


def draw(points: list[dict[str, Any]], picture: Path) -> None:
    """Success over all tokens, and over those of replies alone; a thin line a seed, a thick one their mean."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(10, 4), layout="constrained")
    both = figure.subplots(1, 2, sharey=True)
    for axes, over, name in zip(both, ("tokens", "response_tokens"), ("prompts and replies", "replies"), strict=True):
        for place, kind in enumerate(KINDS):
            ways = [way for (of, _), way in curves(points).items() if of == kind]
            for way in ways:
                axes.plot([p[over] for p in way], [p["success"] for p in way], color=f"C{place}", alpha=0.4, lw=0.9)
            moments = list(zip(*ways, strict=False))
            at = [fmean(p[over] for p in each) for each in moments]
            rates = [fmean(p["success"] for p in each) for each in moments]
            axes.plot(at, rates, color=f"C{place}", marker="o", markersize=3, lw=2, label=kind)
        axes.set(xlabel=f"tokens of {name}")
        axes.grid(alpha=0.3)
    both[0].set_ylabel("success at validation, in chains")
    both[0].legend(fontsize=8)
    figure.savefig(picture, dpi=110)
    print(f"picture in {picture}")


if __name__ == "__main__":
    main()
