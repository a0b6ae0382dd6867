"""Takes ``tests/data/reference/contexts.jsonl.gz`` from RAGEN's own context managers, run on rollouts of our words.

    python tests/make_reference_contexts.py [CHECKOUT_OF_2025 CHECKOUT_OF_2026]

Without arguments the archives in ``../shared/peers`` are unpacked. RAGEN runs in a process of its own; packages that it
imports and a context manager never uses (vllm, gym, ...) are stood in for where they are not installed.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tarfile
import tempfile
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent))

from ragen.llm_agent.tokenizer import TOKENIZER_DIR
from support import context_facts, reference_facts

STAND_INS = """
import importlib.machinery, sys, types

NAMES = {"vllm", "wandb", "openai", "anthropic", "together", "gym", "gym_sokoban", "spacy", "webshop_minimal"}
NAMES |= {"alfworld", "textworld"}

class Anything(types.ModuleType):
    __path__ = []

    def __getattr__(self, name):
        if name.startswith("__"):
            raise AttributeError(name)
        return type(name, (), {})

class Finder:
    @staticmethod
    def find_spec(name, path=None, target=None):
        if name.partition(".")[0] in NAMES:
            return importlib.machinery.ModuleSpec(name, Finder, is_package=True)

    @staticmethod
    def create_module(spec):
        return Anything(spec.name)

    @staticmethod
    def exec_module(module):
        pass

sys.meta_path.append(Finder)
"""


def taken(version: str, checkout: Path, folder: Path) -> list[reference_facts.Record]:
    """What the context manager of a checkout makes of the rollouts."""
    out = folder / f"{version}.jsonl"
    (folder / "sitecustomize.py").write_text(STAND_INS)
    environment = os.environ | {"PYTHONPATH": f"{folder}{os.pathsep}{checkout}", "PYTHONDONTWRITEBYTECODE": "1"}
    command = [sys.executable, context_facts.__file__, version, str(TOKENIZER_DIR), str(out)]
    subprocess.run(command, env=environment, cwd=folder, check=True)
    return [json.loads(line) for line in out.read_text("utf-8").splitlines()]


def main() -> None:
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        checkouts = [Path(argument).resolve() for argument in sys.argv[1:]]
        if not checkouts:
            peers = Path(__file__).resolve().parents[2] / "shared" / "peers"
            for version in reference_facts.VERSIONS:
                with tarfile.open(peers / f"ragen-{version}.tar.gz") as packed:
                    packed.extractall(folder, filter="data")
                checkouts.append(folder / f"ragen-{version}")
        lines = []
        for version, checkout in zip(reference_facts.VERSIONS, checkouts, strict=True):
            lines += taken(version, checkout, folder)
    print("contexts", len(lines), reference_facts.write_lines("contexts", lines), "bytes")


if __name__ == "__main__":
    main()
