"""Configuration of WebShop: the files of its catalogue, its goals, and the version of RAGEN to follow."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, NamedTuple

from ragen.env.checks import ALL_OR_SOME, check, integer, null, one_of, require

DATA_VARIABLE = "RAGEN_WEBSHOP_DATA"
BUILTIN_DIR = Path(__file__).parent / "data"
DATASETS = {"small": "items_shuffle_1000.json", "full": "items_shuffle.json"}
FORMAT = 4  # of the built files; increase it so that older ones are not used


class Source(NamedTuple):
    """Everything that determines a catalogue.

    Attributes:
        products: The catalogue file.
        attributes: The file with attributes and instructions.
        num_products: Maximum number of records to read; None for all.
        price_seed: Seed of the prices and price limits.
    """

    products: Path
    attributes: Path
    num_products: int | None = None
    price_seed: int = 12345

    def key(self) -> list[Any]:
        """Everything that determines what would be built now, with the files' paths, sizes and times."""
        stats = [[stat.st_size, stat.st_mtime_ns] for stat in map(os.stat, (self.products, self.attributes))]
        return [FORMAT, *map(str, self), stats]


@dataclass
class WebShopEnvConfig:
    """Configuration of :class:`~ragen.env.webshop.env.WebShopEnv`.

    The keys up to ``show_attrs`` are RAGEN's; the others exist only here. Environments with equal data keys share one
    catalogue.

    Attributes:
        dataset: ``"builtin"`` is the catalogue that ships with this package; ``"small"`` and ``"full"`` are WebShop's
            ``items_shuffle_1000.json`` and ``items_shuffle.json`` in ``data_dir``. None selects the file at
            ``file_path``, or the only catalogue in ``data_dir``, or ``"builtin"``.
        observation_mode: ``"text"``.
        file_path: A catalogue in the format of ``items_shuffle*.json``, plain or gzip.
        server: Must be None: the shop has no server.
        filter_goals: Must be None: select goals by seed and mode instead.
        limit_goals: Maximum number of goals, the first in the shop's order; -1 for all.
        num_products: Maximum number of records read from the catalogue; None for all.
        human_goals: Must be False: instructions are made from the products.
        show_attrs: Whether item pages have an "Attributes" button.
        data_dir: The folder of the data files; None for the environment variable ``RAGEN_WEBSHOP_DATA``, if ``dataset``
            is ``"small"`` or ``"full"``.
        attr_path: Attributes and instructions in the format of ``items_ins_v2*.json``; None for the file of that name
            beside the catalogue.
        price_seed: Seed of the prices of products with a price range, and of the price limits of goals. RAGEN draws
            both from Python's unseeded global generator.
        compat: ``"up25"`` follows RAGEN of 2025: the reward is the graded score. ``"up26"`` follows RAGEN of 2026: the
            reward is 1.0 for a perfect score and 0.0 otherwise, with the graded score as ``raw_reward`` in info; the
            arguments of actions are valid in upper and lower case; a search is valid only on pages with a search box;
            and the hints have a line break that is missing in 2025.
        render_mode: ``"text"``.
    """

    dataset: Literal["builtin", "small", "full"] | None = None
    observation_mode: Literal["text"] = "text"
    file_path: str | None = None
    server: Any = None
    filter_goals: Any = None
    limit_goals: int = -1
    num_products: int | None = None
    human_goals: bool = False
    show_attrs: bool = False
    data_dir: str | None = None
    attr_path: str | None = None
    price_seed: int = 12345
    compat: Literal["up25", "up26"] = "up25"
    render_mode: str = "text"

    def __post_init__(self) -> None:
        """Check every value and find the data files; only the beginning of each is read.

        Raises:
            ConfigError: A value is invalid, or a file is missing or has an invalid format.
        """
        check(
            self,
            server=null("; the shop runs inside the environment"),
            filter_goals=null("; use limit_goals"),
            human_goals=one_of(False),
            limit_goals=ALL_OR_SOME,
            price_seed=integer(),
        )
        self._source = _find_source(self)

    @property
    def source(self) -> Source:
        """The data files and options that determine the catalogue."""
        return self._source


def _find_source(config: WebShopEnvConfig) -> Source:
    products = _products_file(config)
    beside = products.with_name(products.name.removesuffix(".gz").replace("items_shuffle", "items_ins_v2"))
    if config.attr_path is not None:
        beside = _existing(config, "attr_path")
    found = [path for path in (beside, beside.with_name(f"{beside.name}.gz")) if path.is_file() and path != products]
    expected = f"the path of a file, as there is no {beside.name} (plain or .gz) beside {products}"
    require(bool(found), config, "attr_path", expected)
    return Source(products, found[0], config.num_products, config.price_seed)


def _products_file(config: WebShopEnvConfig) -> Path:
    if config.file_path is not None:
        return _existing(config, "file_path")
    given, dataset = config.data_dir, config.dataset
    if dataset == "builtin" or (dataset is None and given is None):
        return next(BUILTIN_DIR.glob("items_shuffle*"))
    given = given or os.environ.get(DATA_VARIABLE) or ""
    name, folder = DATASETS.get(dataset or "", "items_shuffle*.json"), Path(given).expanduser().absolute()
    found = (
        [path for place in (name, f"{dataset}/{name}") for path in sorted(folder.glob(f"{place}*"))] if given else []
    )
    expected = f"a folder with one {name} (plain or .gz), by this key or the variable {DATA_VARIABLE}"
    unique = len(found) == 1 or (bool(found) and dataset is not None)
    require(unique, config, "data_dir", f"{expected}; dataset='builtin' needs none, and file_path names any file")
    return found[0]


def _existing(config: WebShopEnvConfig, key: str) -> Path:
    path = Path(getattr(config, key)).expanduser().absolute()
    require(path.is_file(), config, key, "an existing file")
    return path
