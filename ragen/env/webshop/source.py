"""The source of a catalogue: its files, and all options that affect what is built from them."""

from __future__ import annotations

import gzip
import json
import os
from dataclasses import astuple, dataclass
from pathlib import Path
from typing import Any

from ragen.env.checks import require
from ragen.errors import ConfigError

DATA_VARIABLE = "RAGEN_WEBSHOP_DATA"
BUILTIN_DIR = Path(__file__).parent / "data"
DATASETS = {"small": "items_shuffle_1000.json", "full": "items_shuffle.json"}
FORMAT = 4  # of the built files; increase it so that older ones are not used

_TYPE = "webshop"


@dataclass(frozen=True)
class Source:
    """Everything that determines a catalogue.

    Attributes:
        products: The catalogue file.
        attributes: The file with attributes and instructions.
        instructions: The file with people's instructions; None without ``human_goals``.
        num_products: Maximum number of records to read; None for all.
        price_seed: Seed of the prices and price limits.
    """

    products: Path
    attributes: Path
    instructions: Path | None = None
    num_products: int | None = None
    price_seed: int = 12345

    def key(self) -> list[Any]:
        """Everything that determines what would be built now, with the files' paths, sizes and times."""
        paths = [path for path in (self.products, self.attributes, self.instructions) if path]
        stats = [[stat.st_size, stat.st_mtime_ns] for stat in map(os.stat, paths)]
        return [FORMAT, *map(str, astuple(self)), stats]


def read_data(key: str, path: Path, kind: type) -> Any:
    """The list or dict in a JSON file; gzip is detected by content, not by name.

    Raises:
        ConfigError: It has something else.
    """
    try:
        data = path.read_bytes()
        found = json.loads(gzip.decompress(data) if data[:2] == b"\x1f\x8b" else data)
    except (OSError, EOFError, ValueError) as error:
        raise ConfigError(f"webshop: env_config key {key}={str(path)!r} cannot be read as JSON: {error}.") from error
    require(isinstance(found, kind), _TYPE, key, str(path), f"a file with a JSON {kind.__name__}")
    return found


def find_source(config: Any) -> Source:
    """Find the files of a :class:`~ragen.env.webshop.config.WebShopEnvConfig`.

    Raises:
        ConfigError: A file is missing.
    """
    products = _products_file(config)
    name = products.name.removesuffix(".gz").replace("items_shuffle", "items_ins_v2")
    attributes = _given_or_beside(config, "attr_path", products, name, [products.parent])
    instructions = None
    if config.human_goals:
        folders = [products.parent, products.parent.parent]
        instructions = _given_or_beside(config, "human_attr_path", products, "items_human_ins.json", folders)
    return Source(products, attributes, instructions, config.num_products, config.price_seed)


def _products_file(config: Any) -> Path:
    if config.file_path is not None:
        return _existing("file_path", config.file_path)
    given, dataset = config.data_dir, config.dataset
    if dataset == "builtin" or (dataset is None and given is None):
        return next(BUILTIN_DIR.glob("items_shuffle*"))
    given = given or os.environ.get(DATA_VARIABLE) or ""
    name, folder = DATASETS.get(dataset, "items_shuffle*.json"), Path(given).expanduser().absolute()
    folders = [folder] if dataset is None else [folder, folder / dataset]
    found = [path for each in folders for end in ("", ".gz") for path in each.glob(name + end)] if given else []
    expected = f"a folder with one {name} (plain or .gz), by this key or the variable {DATA_VARIABLE}"
    unique = len(found) == 1 or (bool(found) and dataset is not None)
    require(unique, _TYPE, "data_dir", given, f"{expected}; dataset='builtin' needs none, and file_path names any file")
    return found[0]


def _existing(key: str, given: str) -> Path:
    path = Path(given).expanduser().absolute()
    require(path.is_file(), _TYPE, key, given, "an existing file")
    return path


def _given_or_beside(config: Any, key: str, products: Path, name: str, folders: list[Path]) -> Path:
    if getattr(config, key) is not None:
        return _existing(key, getattr(config, key))
    candidates = (folder / (name + end) for folder in folders for end in ("", ".gz"))
    found = next((path for path in candidates if path.is_file() and path != products), None)
    expected = f"the path of a file, as there is no {name} (plain or .gz) beside {products}"
    require(found is not None, _TYPE, key, None, expected)
    return found  # type: ignore[return-value]
