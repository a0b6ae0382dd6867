"""``python -m ragen.env.webshop build DATA_DIR`` builds an index ahead of time; ``play`` opens the shop."""

from __future__ import annotations

import argparse
import secrets
import sys
import time
from pathlib import Path

from ragen.commands import CommandParser, refusing
from ragen.env.fields import build_env
from ragen.env.webshop.config import WebShopEnvConfig
from ragen.env.webshop.env import WebShopEnv
from ragen.env.webshop.play import play
from ragen.env.webshop.source import catalogue_files
from ragen.errors import ConfigError


def parser() -> argparse.ArgumentParser:
    """The command line."""
    top = CommandParser(prog="python -m ragen.env.webshop", description="WebShop: build an index, or shop.")
    commands = top.add_subparsers(dest="command", required=True)
    build = commands.add_parser("build", help="build the index of every catalogue in a folder, ahead of time")
    build.add_argument("data_dir", type=Path, help="a folder with items_shuffle*.json and items_ins_v2*.json (or .gz)")
    build.add_argument("--num-products", type=int, help="read at most this many products")
    build.add_argument("--human-goals", action="store_true", help="use the goals of items_human_ins.json")
    build.add_argument("--price-seed", type=int, default=WebShopEnvConfig.price_seed, help="seed of prices and limits")
    build.add_argument("--nouns", choices=("words", "spacy"), default="words", help="how titles are compared")
    build.add_argument("--cache-dir", help="folder for the index (default: RAGEN_CACHE, or ~/.cache/ragen)")
    game = commands.add_parser("play", help="shop in the terminal")
    game.add_argument(
        "settings", nargs="*", default=[], metavar="key=value", help="a key of env_config, such as data_dir=DIR"
    )
    game.add_argument("--seed", type=int, help="selects the goal (default: random)")
    game.add_argument("--mode", choices=("train", "val", "test"), default="train", help="selects the split")
    return top


@refusing
def main(arguments: list[str] | None = None) -> int:
    """Run the command line.

    Args:
        arguments: The arguments; None for those of the command line.

    Returns:
        The exit code: 0, or 2 after an error message on standard error.
    """
    options = parser().parse_args(arguments)
    try:
        return _build(options) if options.command == "build" else _play(options)
    except KeyboardInterrupt:
        print()
        return 0


def _build(options: argparse.Namespace) -> int:
    found = catalogue_files(options.data_dir)
    if not found:
        raise ConfigError(f"no items_shuffle*.json or items_shuffle*.json.gz in {options.data_dir}.")
    for path in found:
        start = time.perf_counter()
        config = WebShopEnvConfig(
            file_path=str(path),
            num_products=options.num_products,
            human_goals=options.human_goals,
            price_seed=options.price_seed,
            nouns=options.nouns,
            cache_dir=options.cache_dir,
        )
        catalogue = WebShopEnv(config).catalogue
        took = time.perf_counter() - start
        print(f"{path}: {catalogue.product_count} products, {catalogue.goal_count} goals, {took:.1f} s")
    return 0


def _play(options: argparse.Namespace) -> int:
    env = build_env("webshop", options.settings)
    seed = options.seed if options.seed is not None else secrets.randbelow(1 << 32)
    print(f"Seed {seed}. Type an action, its number, or words to search for; 'quit' ends.")
    score = play(env, seed, options.mode, sys.stdin, sys.stdout)
    print("\nNothing was bought." if score is None else f"\nYour score: {score:.2f} of 1.")
    return 0


if __name__ == "__main__":
    sys.exit(main())
