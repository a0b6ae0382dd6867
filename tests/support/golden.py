"""Reads the golden resets and rollouts of the reference, where they are there.

They lie beside the repository, in ``../shared/golden`` (its README tells the schema), and are no part of it: a test
that asks for a file that is not there is skipped, and says so.
"""

from __future__ import annotations

import gzip
import json
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

GOLDEN = Path(__file__).resolve().parents[3] / "shared" / "golden"

Record = dict[str, Any]


@dataclass
class Session:
    """One life of a manager in `<version>/rollouts/<tag>.jsonl.gz`.

    Attributes:
        header: The session record (mode, base_seed, tags, n_groups, group_size, ...).
        events: Its `reset`, `step` and `final` records, in order.
    """

    header: Record
    events: list[Record] = field(default_factory=list)


def golden_file(*parts: str) -> Path:
    """A file of the golden folder; skips the running test where it is absent."""
    path = GOLDEN.joinpath(*parts)
    if not path.exists():
        pytest.skip(f"no golden data: ../shared/golden/{'/'.join(parts)} is not there")
    return path


def records(*parts: str) -> Iterator[Record]:
    """The objects of a gzipped JSON-lines file, by its path inside the golden folder."""
    with gzip.open(golden_file(*parts), "rt", encoding="utf-8") as lines:
        for line in lines:
            yield json.loads(line)


def tags(version: str, kind: str) -> list[str]:
    """The tags that have goldens, to parametrize with.

    Where there is no golden folder this is one stand-in, so that each test runs, asks for its file, and is skipped with
    the reason.

    Args:
        version: "up25" or "up26".
        kind: "resets" or "rollouts".
    """
    found = sorted(path.name.removesuffix(".jsonl.gz") for path in GOLDEN.glob(f"{version}/{kind}/*.jsonl.gz"))
    return found or ["absent"]


def template(version: str, tag: str) -> dict[str, Any]:
    """The tag's entry in `custom_envs`, from the header of its resets."""
    return next(records(version, "resets", f"{tag}.jsonl.gz"))["template"]


def sessions(version: str, tag: str) -> Iterator[Session]:
    """The golden rollouts of a tag, one manager life at a time."""
    yield from sessions_in(version, "rollouts", f"{tag}.jsonl.gz")


def sessions_in(*parts: str) -> Iterator[Session]:
    """The rollouts in a file, by its path inside the golden folder."""
    session: Session | None = None
    for record in records(*parts):
        if record["kind"] == "session":
            if session is not None:
                yield session
            session = Session(record)
        elif session is not None:
            session.events.append(record)
    if session is not None:
        yield session


def assert_same_number(ours: Any, golden: Any, where: object = "") -> None:
    """Equal to the last bit, and an int where the reference has an int."""
    assert type(ours) is type(golden), (where, ours, golden)
    assert ours == golden, where
