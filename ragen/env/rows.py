"""Rows of a data set, from a file, a directory or a hub, read once per process.

An environment keeps a :class:`RowSource`, which is small when pickled, and gets the rows from :func:`load_rows` or a
cache of its own. The environments of a process thus share one copy. A file that changes while a process runs is not
read again.

Parquet files need ``pyarrow`` and hub names need ``datasets``; each is imported when such a source is first read.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import chain
from pathlib import Path
from typing import Any

from ragen.errors import ConfigError

Row = tuple[Any, ...]

_SUFFIXES = (".parquet", ".jsonl", ".json")
_SPLIT_WORDS = ("train", "test", "validation", "valid", "val", "dev", "eval")
_HUB_NAME = re.compile(r"[\w-][\w.-]*/[\w-][\w.-]*")


@dataclass(frozen=True)
class RowSource:
    """A source of rows; two equal sources have the same rows. Nothing is read before the rows are asked for.

    Attributes:
        env_type: The environment type, for messages.
        key: The configuration key of the location, for messages.
        location: A file, a directory, or a data set's name on the Hugging Face hub (``owner/name``); an existing path
            is made absolute.
        columns: The columns to read, in this order.
        split: The split of a directory or hub data set.
        cache_dir: Cache directory for hub data sets; None for the library's default.
    """

    env_type: str
    key: str
    location: str
    columns: tuple[str, ...] = ()
    split: str = "train"
    cache_dir: str | None = None

    def __post_init__(self) -> None:
        """Check the location.

        Raises:
            ConfigError: It is neither an existing path nor of the form ``owner/name``.
        """
        if os.path.exists(self.location):
            object.__setattr__(self, "location", os.path.abspath(self.location))
        elif not _HUB_NAME.fullmatch(self.location) or self.location.lower().endswith(_SUFFIXES):
            raise self.error("there is no such file or directory.")

    def error(self, problem: str) -> ConfigError:
        """An error about this source."""
        return ConfigError(f"{self.env_type}: env_config key {self.key}={self.location!r}: {problem}")


def is_of(mode: str | None, text: str) -> bool:
    """Whether a problem is for training (``"train"`` or None) or for any other mode: decided by its text alone."""
    is_held_out = hashlib.sha256(text.encode("utf-8", "surrogatepass")).digest()[0] % 5 == 0  # one in five
    return is_held_out == (mode not in (None, "train"))


@lru_cache(maxsize=8)
def load_rows(source: RowSource) -> Sequence[Row]:
    """The rows of a source, in order.

    Returns:
        A sequence of tuples with the source's columns; Arrow-backed for Parquet files and hubs, where a row is
        converted to Python objects on access.

    Raises:
        ConfigError: The source is missing or malformed, lacks a column, or needs a package that is not installed.
    """
    path = Path(source.location)
    if not path.exists():
        return _hub_rows(source)
    files = [path] if path.is_file() else _files_of_split(source, path)
    if files[0].suffix.lower() == ".parquet":
        return _parquet_rows(source, files)
    return list(chain.from_iterable(_json_rows(source, file) for file in files))


def _files_of_split(source: RowSource, folder: Path) -> list[Path]:
    for suffix in _SUFFIXES:
        found = sorted(file for file in folder.rglob(f"*{suffix}") if file.is_file())
        named = [file for file in found if _names_split(file, folder, source.split)]
        if named:
            return named
        unnamed = not any(_names_split(file, folder, word) for file in found for word in _SPLIT_WORDS)
        if found and unnamed and source.split == "train":
            return found
    raise source.error(f"the directory has no {', '.join(_SUFFIXES)} file of split {source.split!r}.")


def _names_split(file: Path, folder: Path, split: str) -> bool:
    words = re.split(r"[^a-zA-Z0-9]+", str(file.relative_to(folder).with_suffix("")).lower())
    return split.lower() in words


def _json_rows(source: RowSource, file: Path) -> Iterator[Row]:
    if file.suffix.lower() not in _SUFFIXES:
        raise source.error(f"expected a {', '.join(_SUFFIXES)} file or a directory of them.")
    for number, record in enumerate(json_objects(source, file), 1):
        _require_columns(source, record, f"row {number} of {file.name}")
        yield tuple(record[name] for name in source.columns)


def json_objects(source: RowSource, file: Path | None = None) -> Iterator[dict[str, Any]]:
    """The objects of a file: JSON lines, which are read one by one, or a list.

    Args:
        source: The source, for messages.
        file: The file; None for the source's location.

    Raises:
        ConfigError: The file cannot be read, or has something else.
    """
    file = file or Path(source.location)
    for number, record in enumerate(_parsed(source, file), 1):
        if not isinstance(record, dict):
            raise source.error(f"row {number} of {file.name} is a {type(record).__name__}, expected an object.")
        yield record


def _parsed(source: RowSource, file: Path) -> Iterator[Any]:
    try:
        with open(file, encoding="utf-8") as lines:
            is_list = lines.read(100).lstrip().startswith("[")
            lines.seek(0)
            yield from json.load(lines) if is_list else map(json.loads, filter(str.strip, lines))
    except (OSError, ValueError) as error:
        raise source.error(f"{file.name} is not readable as JSON rows: {error}.") from error


def _require_columns(source: RowSource, present: Iterable[str], where: str) -> None:
    missing = [name for name in source.columns if name not in present]
    if missing:
        there = ", ".join(map(repr, present)) or "none"
        raise source.error(f"{where} has no column {', '.join(map(repr, missing))}; it has {there}.")


class _Rows(Sequence[Row]):
    """Rows that are converted to tuples on access."""

    def __init__(self, length: int, row: Callable[[int], Row]) -> None:
        self._length, self._row = length, row

    def __len__(self) -> int:
        return self._length

    def __getitem__(self, index: Any) -> Any:
        return self._row(index)


def _parquet_rows(source: RowSource, files: list[Path]) -> Sequence[Row]:
    try:
        from pyarrow import ArrowException, dataset
    except ImportError as error:
        raise source.error("reading .parquet needs the package pyarrow: pip install pyarrow.") from error
    try:
        found = dataset.dataset(list(map(str, files)), format="parquet")
        _require_columns(source, found.schema.names, files[0].name)
        table = found.to_table(columns=list(source.columns))
    except (OSError, ArrowException) as error:
        raise source.error(f"{files[0].name} is not readable as Parquet: {error}.") from error
    columns = [table.column(name) for name in source.columns]
    return _Rows(len(table), lambda index: tuple(column[index].as_py() for column in columns))


def _hub_rows(source: RowSource) -> Sequence[Row]:
    try:
        import datasets
    except ImportError as error:
        raise source.error(
            "there is no such file or directory, and loading it from the Hugging Face hub needs the package datasets: "
            "pip install datasets."
        ) from error
    try:
        dataset = datasets.load_dataset(source.location, split=source.split, cache_dir=source.cache_dir)
    except Exception as error:
        raise source.error(
            f"there is no such file or directory, and loading it from the Hugging Face hub failed: "
            f"{type(error).__name__}: {error}"
        ) from error
    _require_columns(source, dataset.column_names, f"split {source.split!r}")
    return _Rows(len(dataset), lambda index: tuple(map(dataset[index].__getitem__, source.columns)))
