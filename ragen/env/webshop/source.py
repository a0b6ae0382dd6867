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
FORMAT = 3  # of the built files; increase it so that older ones are not used

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
    attributes = _given_or_beside(config, "attr_path", products, _attribute_names(products), [products.parent])
    instructions = None
    if config.human_goals:
        folders = [products.parent, products.parent.parent]
        instructions = _given_or_beside(config, "human_attr_path", products, ["items_human_ins.json"], folders)
    return Source(products, attributes, instructions, config.num_products, config.price_seed)


def catalogue_files(folder: Path) -> list[Path]:
    """The catalogues in a folder, by name."""
    return sorted(path for path in folder.glob("items_shuffle*") if path.name.endswith((".json", ".json.gz")))


def _products_file(config: Any) -> Path:
    dataset = config.dataset
    require(dataset in (None, "builtin", *DATASETS), _TYPE, "dataset", dataset, "'builtin', 'small', 'full' or null")
    if config.file_path is not None:
        path = Path(config.file_path).expanduser().absolute()
        require(path.is_file(), _TYPE, "file_path", config.file_path, "an existing file")
        return path
    if dataset == "builtin" or (dataset is None and config.data_dir is None):
        return catalogue_files(BUILTIN_DIR)[0]
    return _in_data_dir(config)


def _in_data_dir(config: Any) -> Path:
    given = config.data_dir or os.environ.get(DATA_VARIABLE)
    needed = f"a folder with {DATASETS.get(config.dataset or '', 'items_shuffle*.json')} (plain or .gz)"
    expected = f"{needed}, by this key or the variable {DATA_VARIABLE}; dataset='builtin' needs no files"
    require(given is not None and Path(given).expanduser().is_dir(), _TYPE, "data_dir", given, expected)
    folder = Path(str(given)).expanduser().absolute()
    if config.dataset is None:
        found = catalogue_files(folder)
        some = f"{needed}; it has {len(found)} of them, and file_path can say which"
        require(len(found) == 1, _TYPE, "data_dir", given, some)
        return found[0]
    name = DATASETS[config.dataset]
    path = _first_file([folder, folder / config.dataset], [name])
    require(path is not None, _TYPE, "data_dir", given, expected)
    return path  # type: ignore[return-value]


def _attribute_names(products: Path) -> list[str]:
    return [products.name.removesuffix(".gz").replace("items_shuffle", "items_ins_v2")]


def _given_or_beside(config: Any, key: str, products: Path, names: list[str], folders: list[Path]) -> Path:
    given = getattr(config, key)
    if given is not None:
        path = Path(given).expanduser().absolute()
        require(path.is_file(), _TYPE, key, given, "an existing file")
        return path
    found = _first_file(folders, names)
    ok = found is not None and found != products
    require(ok, _TYPE, key, given, f"the path of a file, as there is no {names[0]} (plain or .gz) beside {products}")
    return found  # type: ignore[return-value]


def _first_file(folders: list[Path], names: list[str]) -> Path | None:
    candidates = (folder / (name + end) for folder in folders for name in names for end in ("", ".gz"))
    return next((path for path in candidates if path.is_file()), None)
