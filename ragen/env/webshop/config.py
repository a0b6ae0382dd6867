"""Configuration of a shop: which catalogue it sells, which goals it sets, and whose rules it follows."""

from __future__ import annotations

import importlib.util
from dataclasses import dataclass
from typing import Any, Literal

from ragen.env.checks import is_integer, require
from ragen.env.webshop.build import NOUN_MODEL
from ragen.env.webshop.cache import check_cache_dir
from ragen.env.webshop.source import Source, find_source

_TYPE = "webshop"


@dataclass
class WebShopEnvConfig:
    """Configuration of :class:`~ragen.env.webshop.env.WebShopEnv`.

    The keys down to ``show_attrs`` are RAGEN's, the others ours. Environments with equal data keys share one catalogue.

    Attributes:
        dataset: ``"builtin"`` is the catalogue that ships with this package; ``"small"`` and ``"full"`` are WebShop's
            ``items_shuffle_1000.json`` and ``items_shuffle.json`` in ``data_dir``. None means the file at
            ``file_path``, else the one catalogue in ``data_dir``, else ``"builtin"``.
        observation_mode: ``"text"``.
        file_path: A catalogue in the format of ``items_shuffle*.json``, plain or gzip.
        server: None; the shop has no server.
        filter_goals: None; choose goals by seed and mode instead.
        limit_goals: Keep only this many goals, the first in the shop's order; -1 keeps all.
        num_products: Read only this many records of the catalogue; None reads all.
        human_goals: Set the instructions that people wrote, in place of those made from the products.
        show_attrs: Whether item pages have an "Attributes" button.
        data_dir: The folder of the data files; None means the environment variable ``RAGEN_WEBSHOP_DATA`` where
            ``dataset`` is ``"small"`` or ``"full"``.
        attr_path: Attributes and instructions in the format of ``items_ins_v2*.json``; None means the file of that name
            beside the catalogue.
        human_attr_path: Instructions in the format of ``items_human_ins.json``; None means the file of that name beside
            the catalogue or in the folder above.
        price_seed: Seeds the generator that draws a price where a product has a range, and the price limits of the
            goals. RAGEN draws both from Python's global generator, unseeded.
        compat: ``"up25"``, RAGEN of 2025: the reward is the graded score. ``"up26"``, RAGEN of 2026: the reward is 1.0
            for a perfect score and else 0.0, with the graded score as ``raw_reward`` in info; action names in any case
            are valid, a search is valid only where there is a search box; and a missing line break in the hints is
            mended.
        nouns: How the nouns of two product titles are compared for the reward: ``"words"`` takes every word,
            ``"spacy"`` what spaCy's ``en_core_web_sm`` tags as a noun (RAGEN's way; spaCy must be installed).
        cache_dir: Where indices are kept; None means the environment variable ``RAGEN_CACHE``, else ``~/.cache/ragen``.
        render_mode: ``"text"``.
    """

    dataset: str | None = None
    observation_mode: str = "text"
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
    nouns: Literal["words", "spacy"] = "words"
    cache_dir: str | None = None
    render_mode: str = "text"

    def __post_init__(self) -> None:
        """Check every value and find the data files; nothing is read but the beginning of each.

        Raises:
            ConfigError: A value cannot work, or a file is missing or of another format.
        """
        self._check_values()
        check_cache_dir(self.cache_dir)
        self._source = find_source(self)

    def _check_values(self) -> None:
        for key, expected in (("observation_mode", "text"), ("render_mode", "text")):
            require(getattr(self, key) == expected, _TYPE, key, getattr(self, key), repr(expected))
        for key, advice in (("server", "the shop runs inside the environment"), ("filter_goals", "use limit_goals")):
            require(getattr(self, key) is None, _TYPE, key, getattr(self, key), f"null; {advice}")
        for key in ("human_goals", "show_attrs"):
            require(isinstance(getattr(self, key), bool), _TYPE, key, getattr(self, key), "true or false")
        limit, count = self.limit_goals, self.num_products
        require(limit == -1 or is_integer(limit, 1), _TYPE, "limit_goals", limit, "an integer from 1, or -1 for all")
        require(count is None or is_integer(count, 1), _TYPE, "num_products", count, "an integer from 1, or null")
        require(is_integer(self.price_seed), _TYPE, "price_seed", self.price_seed, "an integer")
        require(self.compat in ("up25", "up26"), _TYPE, "compat", self.compat, "'up25' or 'up26'")
        require(self.nouns in ("words", "spacy"), _TYPE, "nouns", self.nouns, "'words' or 'spacy'")
        ready = self.nouns == "words" or all(map(importlib.util.find_spec, ("spacy", NOUN_MODEL)))
        require(ready, _TYPE, "nouns", self.nouns, f"'words', unless spaCy and its model {NOUN_MODEL} are installed")
        for key in ("dataset", "file_path", "data_dir", "attr_path", "human_attr_path", "cache_dir"):
            value = getattr(self, key)
            require(
                value is None or (isinstance(value, str) and value != ""), _TYPE, key, value, "a text that is not empty"
            )

    @property
    def source(self) -> Source:
        """The data files and options that decide what the catalogue is."""
        return self._source
