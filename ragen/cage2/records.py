"""What a search keeps on disk: written whole or not at all; reading it runs no code that it may bring.

``search.json`` is what a search goes on from: settings, and the result of each workflow that was finished. Results,
``results.json``, are for readers, and written anew from it. ``policies/`` has the policy of each workflow.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import IO, Any

from ragen.cage2.results import WorkflowResult
from ragen.cage2.settings import SearchSettings
from ragen.errors import CheckpointError
from ragen.files import replacing

VERSION = 1


class SearchRecords:
    """The folder of a search.

    Attributes:
        folder: Where it is.
    """

    def __init__(self, folder: Path) -> None:
        """Name a folder, which need not be there."""
        self.folder = folder

    @property
    def results_path(self) -> Path:
        """Where the results are, for readers."""
        return self.folder / "results.json"

    def policy_path(self, iteration: int) -> Path:
        """Where the policy of a workflow is."""
        return self.folder / "policies" / f"workflow_{iteration:03d}.pt"

    def read(self, settings: SearchSettings) -> list[WorkflowResult]:
        """The results of the search that was begun here; none where there was none.

        Raises:
            CheckpointError: They cannot be read, or are of a search with other settings.
        """
        path = self.folder / "search.json"
        if not path.exists():
            return []
        try:
            state = json.loads(path.read_text("utf-8"))
            version, before = state["version"], state["settings"]
            results = [WorkflowResult.of(each) for each in state["results"]]
        except (OSError, ValueError, TypeError, KeyError, AttributeError) as error:
            raise CheckpointError(f"{path} cannot be read: remove it, or give another checkpoint_dir.") from error
        if version != VERSION:
            raise CheckpointError(f"{path} is of version {version}, and this one reads {VERSION}: give another folder.")
        for name, value in settings.followed().items():
            if before.get(name) != value:
                raise CheckpointError(
                    f"the search in {self.folder} had {name} = {before.get(name)!r}, and now it is {value!r}: give it "
                    "what it had, or another checkpoint_dir."
                )
        return results

    def write(self, settings: SearchSettings, results: Sequence[WorkflowResult]) -> None:
        """Write all results so far.

        Raises:
            CheckpointError: It cannot be done; what was there before still is.
        """
        state = {
            "version": VERSION,
            "settings": settings.followed(),
            "results": [dataclasses.asdict(each) for each in results],
        }
        self._write_json(self.folder / "search.json", state)
        self._write_json(self.results_path, [each.row() for each in results])

    def write_policy(self, iteration: int, state: dict[str, Any]) -> None:
        """Write the policy of a workflow.

        Raises:
            CheckpointError: It cannot be done.
        """
        import torch

        self._write(self.policy_path(iteration), lambda file: torch.save(state, file))

    def _write_json(self, path: Path, value: Any) -> None:
        text = json.dumps(value, indent=1, allow_nan=False) + "\n"
        self._write(path, lambda file: file.write(text.encode()))

    @staticmethod
    def _write(path: Path, fill: Callable[[IO[bytes]], object]) -> None:
        try:
            with replacing(path, durable=True) as file:
                fill(file)
        except OSError as error:
            raise CheckpointError(f"{path} cannot be written: {error}") from error
