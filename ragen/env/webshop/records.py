"""Reads the products of WebShop's data files, cleaned as in the reference shop."""

from __future__ import annotations

import gzip
import json
import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ragen.env.webshop.config import Source
from ragen.errors import ConfigError

DEFAULT_PRICE = 100.0  # dollars; of a product without a price

_NOT_NUMERIC = re.compile(r"[^\d.]", re.ASCII)
_WORD = re.compile(r"[A-Za-z0-9]+")


@dataclass
class Record:
    """A product as shown in the shop, with its instructions.

    Attributes:
        asin: The product's identifier, at most ten characters.
        title: Its name.
        description: One text, may be empty.
        bullets: The features.
        prices: In dollars: one price, or the lowest and the highest.
        price_text: The price on the pages.
        options: The values of each option by its name in lower case, in the order of the item page.
        attributes: The attributes of the product, two or three words each.
        query: The search query by which the product was found when the data was collected.
        category: The shop's department.
        product_category: The path of categories, separated by ``›``.
        instruction: The text of its goal; None for a product without one.
        instruction_attributes: The attributes in the instruction.
        reviews: ``title``, ``score`` and ``body`` of each; the original files have none.
        price: In dollars, drawn between the lowest and the highest.
    """

    asin: str
    title: str
    description: str
    bullets: list[str]
    prices: list[float]
    price_text: str
    options: dict[str, list[str]]
    attributes: list[str]
    query: str
    category: str
    product_category: str
    instruction: str | None = None
    instruction_attributes: list[str] = field(default_factory=list)
    reviews: list[dict[str, Any]] = field(default_factory=list)
    price: float = DEFAULT_PRICE


def read_records(source: Source) -> Iterator[Record]:
    """Read a catalogue's products in file order, without those that the reference skips.

    Args:
        source: The files.

    Raises:
        ConfigError: A file has an invalid format.
    """
    attributes = _read_data("attr_path", source.attributes, dict)
    products = _read_data("file_path", source.products, list)
    seen: set[str] = set()
    try:
        for raw in products[: source.num_products]:
            asin = raw["asin"]
            if asin == "nan" or len(asin) > 10 or asin in seen:
                continue
            seen.add(asin)
            yield tidy(raw, attributes.get(asin) or {})
    except (KeyError, TypeError, AttributeError, ValueError) as error:
        reason = f"{type(error).__name__}: {error}"
        raise ConfigError(
            f"webshop: the catalogue {source.products} (file_path) or its attributes {source.attributes} (attr_path) "
            f"do not have the format of WebShop's items_shuffle*.json and items_ins_v2*.json, at product "
            f"{len(seen)}: {reason}"
        ) from error


def _read_data(key: str, path: Path, kind: type) -> Any:
    """The list or dict in a JSON file; gzip is detected by content, not by name.

    Raises:
        ConfigError: It has something else.
    """
    try:
        data = path.read_bytes()
        found = json.loads(gzip.decompress(data) if data[:2] == b"\x1f\x8b" else data)
    except (OSError, EOFError, ValueError) as error:
        raise ConfigError(f"webshop: env_config key {key}={str(path)!r} cannot be read as JSON: {error}.") from error
    if not isinstance(found, kind):
        raise ConfigError(f"webshop: env_config key {key}={str(path)!r}, expected a file with a JSON {kind.__name__}.")
    return found


def tidy(raw: dict[str, Any], attributes: dict[str, Any]) -> Record:
    """Convert a product of the data files to a record.

    Args:
        raw: An element of ``items_shuffle*.json``.
        attributes: Its entry in ``items_ins_v2*.json``; may be empty.
    """
    prices = parse_prices(raw.get("pricing"))
    bullets = raw.get("small_description") or []
    return Record(
        asin=raw["asin"],
        title=raw["name"],
        description=raw.get("full_description") or "",
        bullets=[bullets] if isinstance(bullets, str) else [str(bullet) for bullet in bullets],
        prices=prices,
        price_text=" to ".join(f"${price}" for price in prices),
        options=_options(raw.get("customization_options") or {}),
        attributes=attributes.get("attributes") or [],
        query=(raw.get("query") or "").lower().strip(),
        category=raw.get("category") or "",
        product_category=raw.get("product_category") or "",
        instruction=attributes.get("instruction"),
        instruction_attributes=attributes.get("instruction_attributes") or [],
        reviews=raw.get("customer_reviews") or [],
    )


def title_words(record: Record) -> list[str]:
    """The words of a product's title in lower case: every run of ASCII letters and digits."""
    return [word.lower() for word in _WORD.findall(record.title)]


def index_text(record: Record) -> str:
    """The text of a product for the search engine: title, description, first feature, and options."""
    options = ", and ".join(f"{name}: {', '.join(values)}" for name, values in record.options.items())
    return " ".join([record.title, record.description, *record.bullets[:1], options]).lower()


def parse_prices(pricing: str | None) -> list[float]:
    """The first two prices in a text such as ``"$5.99$12.00"``; the default price if there is none."""
    pieces = (_NOT_NUMERIC.sub("", piece) for piece in (pricing or "").split("$")[1:])
    return [float(piece) for piece in pieces if _is_number(piece)][:2] or [DEFAULT_PRICE]


def _is_number(text: str) -> bool:
    return text.count(".") <= 1 and text not in ("", ".")


def _options(customization: dict[str, list[dict[str, Any]] | None]) -> dict[str, list[str]]:
    return {
        name.lower(): [choice["value"].strip().replace("/", " | ").lower() for choice in choices]
        for name, choices in customization.items()
        if choices is not None
    }
