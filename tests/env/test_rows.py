from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from ragen.env import resolve_env
from ragen.env.rows import RowSource, load_rows
from ragen.errors import ConfigError, SandboxError

ROWS = [{"a": 1, "b": "x", "more": None}, {"a": 2, "b": "y", "more": 3}]
TUPLES = [(1, "x"), (2, "y")]


def source(location: Path | str, split: str = "train") -> RowSource:
    return RowSource("countdown", "train_path", str(location), ("a", "b"), split)


def write(path: Path, rows: list[dict[str, Any]]) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    if path.suffix == ".parquet":
        pyarrow = pytest.importorskip("pyarrow")
        pyarrow.parquet.write_table(pyarrow.Table.from_pylist(rows), path)
    elif path.suffix == ".json":
        path.write_text(json.dumps(rows))
    else:
        path.write_text("\n".join(map(json.dumps, rows)))
    return path


@pytest.fixture(autouse=True)
def _with_parquet_imported() -> None:
    pytest.importorskip("pyarrow.parquet")


@pytest.mark.parametrize("name", ["rows.jsonl", "rows.json", "rows.parquet"])
def test_each_format_gives_the_same_rows_with_the_columns_asked_for(name: str, tmp_path: Path) -> None:
    rows = load_rows(source(write(tmp_path / name, ROWS)))
    assert [rows[index] for index in range(len(rows))] == TUPLES


@pytest.mark.parametrize("suffix", ["jsonl", "parquet"])
def test_a_directory_gives_the_files_of_the_split_in_order(suffix: str, tmp_path: Path) -> None:
    write(tmp_path / f"data/train-00001-of-00002.{suffix}", ROWS[1:])
    write(tmp_path / f"data/train-00000-of-00002.{suffix}", ROWS[:1])
    write(tmp_path / f"data/test-00000-of-00001.{suffix}", [{"a": 9, "b": "z"}])
    train, test = load_rows(source(tmp_path)), load_rows(source(tmp_path, "test"))
    assert [train[0], train[1]] == TUPLES
    assert list(test) == [(9, "z")]


@pytest.mark.parametrize("content", [[{"a": 1, "c": 2}], b"\xff\xfe nothing of the kind"])
@pytest.mark.parametrize("name", ["rows.jsonl", "rows.parquet", "rows.csv"])
def test_a_file_without_such_rows_is_a_config_error(name: str, content: Any, tmp_path: Path) -> None:
    path = tmp_path / name
    path.write_bytes(content) if isinstance(content, bytes) else write(path, content)
    with pytest.raises(ConfigError) as caught:
        load_rows(source(path))
    assert f"train_path={str(path)!r}" in str(caught.value)


@pytest.mark.parametrize("env_type", ["code", "countdown", "metamathqa", "search"])
def test_training_and_validation_share_no_packaged_problem(env_type: str) -> None:
    env_class, config_class = resolve_env(env_type)
    try:
        env = env_class(config_class())
    except SandboxError as lacks:
        pytest.skip(str(lacks))
    shown: dict[str, set[str]] = {}
    for mode in ("train", "val"):
        env.reset(seed=0, mode=mode)
        shown[mode] = {env.reset(seed=seed, mode=mode).split("\nExamples")[0] for seed in range(1500)}
    env.close()
    assert not shown["train"] & shown["val"]
    assert len(shown["val"]) > 50
