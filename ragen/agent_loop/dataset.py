"""The rows that verl's trainer reads: the environment and seed of each prompt group.

A row is a group: ``rollout.n`` trajectories are played from it, with the same tag and seed. Row ``s * env_groups + g``
is group ``g`` of step ``s``, with the tag and the seed that ``EnvStateManager`` gives that group at its ``s``-th reset:
training seeds count on from ``seed.train``, validation starts from ``seed.val`` each time. A row's prompt is never
shown to a model; the agent loop writes prompts itself.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from envlanes.ragen.seeds import counted_on, first_seed, group_seeds
from ragen.errors import ConfigError, InputError, one_line
from ragen.llm_agent.environments import read_config

STEPS = 200  # default


def rows(config: Any, mode: str = "train", steps: int = 1) -> Iterator[dict[str, Any]]:
    """The rows of a data set, in order.

    Args:
        config: RAGEN's whole configuration.
        mode: ``"train"``, or ``"val"``, which has one step.
        steps: Training steps to write rows for.

    Raises:
        ConfigError: A key has an invalid value, or seeds would run out.
    """
    settings = read_config(config, mode)
    tags = [entry.spec.tag for entry in settings.entries[:: settings.group_size]]
    counted = 0
    for step in range(steps if mode == "train" else 1):
        try:
            seeds = group_seeds(first_seed(mode, settings.base_seed, counted), settings.group_numbers)
        except InputError as error:
            raise ConfigError(f"seed.{mode} = {settings.base_seed}, step {step}: {error}") from error
        counted = counted_on(mode, settings.base_seed, counted, None, max(settings.group_numbers) + 1)
        for group, (tag, seed) in enumerate(zip(tags, seeds, strict=True)):
            yield _row(step * len(tags) + group, tag, seed, mode)


def write(config: Any, path: Path, mode: str = "train", steps: int = 1) -> int:
    """Write a data set; returns the number of rows.

    Args:
        config: RAGEN's whole configuration.
        path: The parquet file; its folder is made if it does not exist.
        mode: ``"train"`` or ``"val"``.
        steps: Training steps to write rows for.

    Raises:
        ConfigError: See :func:`rows`; or the file cannot be written.
    """
    import pyarrow
    from pyarrow import parquet

    table = pyarrow.Table.from_pylist(list(rows(config, mode, steps)))
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        parquet.write_table(table, path)
    except OSError as error:
        raise ConfigError(f"the data set cannot be written to {str(path)!r}: {one_line(error)}.") from error
    return table.num_rows


def _row(index: int, tag: str, seed: int, mode: str) -> dict[str, Any]:
    return {
        "data_source": tag,
        "prompt": [{"role": "user", "content": f"{tag}, seed {seed}"}],
        "reward_model": {"style": "environment", "ground_truth": ""},
        "extra_info": {"index": index, "tag": tag, "seed": seed, "mode": mode},
    }
