"""Configuration of WebShop: its catalogue, its goals, and the version of RAGEN to follow."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

from ragen.env.checks import Rule, check, integer
from ragen.env.webshop.source import Source, find_source

_TYPE = "webshop"


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
        human_goals: Whether to use the instructions that people wrote, instead of those made from the products.
        show_attrs: Whether item pages have an "Attributes" button.
        data_dir: The folder of the data files; None for the environment variable ``RAGEN_WEBSHOP_DATA``, if ``dataset``
            is ``"small"`` or ``"full"``.
        attr_path: Attributes and instructions in the format of ``items_ins_v2*.json``; None for the file of that name
            beside the catalogue.
        human_attr_path: Instructions in the format of ``items_human_ins.json``; None for the file of that name beside
            the catalogue or in its parent folder.
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
    human_attr_path: str | None = None
    price_seed: int = 12345
    compat: Literal["up25", "up26"] = "up25"
    render_mode: str = "text"

    def __post_init__(self) -> None:
        """Check every value and find the data files; only the beginning of each is read.

        Raises:
            ConfigError: A value is invalid, or a file is missing or has an invalid format.
        """
        inside = Rule(lambda value: value is None, "null; the shop runs inside the environment")
        goals = Rule(lambda value: value is None, "null; use limit_goals")
        limit = Rule(lambda value: value == -1 or integer(1).fits(value), "an integer from 1, or -1 for all")
        check(
            _TYPE,
            self,
            server=inside,
            filter_goals=goals,
            limit_goals=limit,
            price_seed=integer(),
        )
        self._source = find_source(self)

    @property
    def source(self) -> Source:
        """The data files and options that determine the catalogue."""
        return self._source
