"""Optional dependencies: the extras that install them, and the error for a missing one.

``pip install .`` installs the engine, environments, managers, rollouts, evaluations, vector environments and tools.
Everything else imports its dependencies under :func:`needs`::

    with needs("train", "training"):
        import torch

    @needs("verl", "a DataProto batch")
    def data_proto(...): ...
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import NamedTuple

from ragen.errors import MissingExtraError, install_command


class Extra(NamedTuple):
    """An extra of this distribution.

    Attributes:
        purpose: Its purpose, as text that follows "to".
        packages: The packages that it installs, by import name; different names for pip are in :data:`DISTRIBUTIONS`.
    """

    purpose: str
    packages: tuple[str, ...]


EXTRAS = {
    "verl": Extra(
        "make DataProto batches and train with verl's trainers",
        ("torch", "transformers", "tensordict", "verl", "transfer_queue", "cachetools", "fastapi", "uvicorn"),
    ),
    "train": Extra(
        "train with `ragen train`",
        ("torch", "transformers", "tensordict", "verl", "matplotlib"),
    ),
    "ray": Extra("play environments on the nodes of a Ray cluster", ("ray",)),
    "hf": Extra("run a Hugging Face model in this process, or use its tokenizer", ("torch", "transformers")),
    "vllm": Extra("generate with vLLM in this process", ("vllm",)),
    "cage2": Extra("search for CAGE 2 workflows", ("torch",)),
    "meta": Extra("train agents by meta-RL", ("torch", "mujoco")),
    "serve": Extra("serve environments with `ragen serve`", ("starlette", "uvicorn", "websockets")),
    "openenv": Extra("play and check environments on OpenEnv servers", ("websockets",)),
    "browser": Extra("play MiniWoB++'s pages in the system's Chromium", ("playwright", "miniwob")),
    "alfworld": Extra("play ALFWorld's household tasks", ("alfworld", "textworld", "fast_downward")),
    "textworld": Extra("play games of TextWorld", ("textworld", "jericho")),
}
"""The extras by name, without those for the project's own development."""

DISTRIBUTIONS = {
    "fast_downward": "fast-downward-textworld",
    "transfer_queue": "TransferQueue",
}
"""Pip's names of packages with a different import name."""


@contextmanager
def needs(extra: str, what: str) -> Iterator[None]:
    """A context manager or decorator in which a failed import raises an error that names the missing extra.

    Args:
        extra: A key of :data:`EXTRAS`.
        what: The feature that needs the packages, in the singular; the message begins with it.

    Raises:
        MissingExtraError: A package of the extra is not installed.
    """
    try:
        yield
    except ModuleNotFoundError as error:
        package = (error.name or "").partition(".")[0]
        if package not in EXTRAS[extra].packages:
            raise
        raise _not_installed(extra, what, [DISTRIBUTIONS.get(package, package)]) from error


def check_installed(extra: str, what: str) -> None:
    """Check that an extra's packages are installed; nothing is imported.

    Args:
        extra: A key of :data:`EXTRAS`.
        what: The feature that needs the packages, in the singular; the message begins with it.

    Raises:
        MissingExtraError: At least one of them is not installed.
    """
    if lacking := missing(extra):
        raise _not_installed(extra, what, lacking)


def _not_installed(extra: str, what: str, packages: Sequence[str]) -> MissingExtraError:
    are = "is" if len(packages) == 1 else "are"
    return MissingExtraError(
        f"{what} needs {' and '.join(packages)}, which {are} not installed: {install_command(extra)}.",
        name=packages[0],
    )


def package_folder(package: str) -> Path:
    """The folder where a package is installed; it is not imported.

    Raises:
        ModuleNotFoundError: It is not installed; :func:`needs` names its extra.
    """
    found = find_spec(package)
    if found is None or not found.submodule_search_locations:
        raise ModuleNotFoundError(f"No module named {package!r}", name=package)
    return Path(found.submodule_search_locations[0]).resolve()


def extra_of(env_class: type) -> str | None:
    """The extra of this package that an environment's class declares to need, as its ``extra``; None for none."""
    extra = getattr(env_class, "extra", None)  # which may be anything in a user's class
    return extra if isinstance(extra, str) and extra in EXTRAS else None


def missing(extra: str) -> list[str]:
    """The packages of an extra that are not installed, by pip's names; nothing is imported."""
    return [
        DISTRIBUTIONS.get(name, name)
        for name in EXTRAS[extra].packages
        if name not in sys.modules and find_spec(name) is None
    ]
