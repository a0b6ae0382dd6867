"""Models behind a server on this machine, evaluated on the same seeds, and compared seed by seed.

Run it with ``python examples/evaluate_local_server.py http://localhost:8000/v1 MODEL_A MODEL_B``; any server that
speaks OpenAI's chat completions will do. What is killed goes on where it was when it is called again.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from ragen.cli.main import main as ragen

GAMES = (
    "es_manager.val.env_configs.tags=[Bandit,FrozenLakeDet]",
    "es_manager.val.env_configs.n_groups=[8,8]",
    "es_manager.val.env_groups=16",
    "agent_proxy.max_turn=4",
)


def main(argv: list[str] | None = None) -> int:
    """Evaluate each model, and compare the first two; the exit code."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("server", help="such as http://localhost:8000/v1")
    parser.add_argument("models", nargs="+", help="as the server calls them")
    parser.add_argument("--folder", type=Path, default=Path("outputs/example"), help="where results go")
    options = parser.parse_args(argv)
    folders = [options.folder / name.replace("/", "_") for name in options.models]
    for name, folder in zip(options.models, folders, strict=True):
        keys = (f"actor.base_url={options.server}", f"actor.model={name}", f"output_dir={folder}", "report=true")
        if code := ragen(["eval", *keys, *GAMES]):
            return code
    if len(folders) < 2:
        return 0
    return ragen(["compare", *map(str, folders[:2]), "--seeds"])


if __name__ == "__main__":
    sys.exit(main())
