"""A shop of three products, and helpers to put it on disk, for the WebShop tests."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

LAMP = {
    "asin": "LAMP000001",
    "name": "Brass desk lamp by Ember",
    "full_description": "A lamp for late work. It is dimmable.",
    "small_description": ["DIMMABLE: turn it down", "Long cord"],
    "pricing": "$20.00$30.00",
    "customization_options": {
        "Color": [{"value": " Navy/Blue "}, {"value": "tangerine"}],
        "Size": [{"value": "tall"}, {"value": "Short"}],
        "Scent": None,
    },
    "category": "garden",
    "product_category": "Home › Lighting › Lamps",
    "query": "Desk Lamps ",
}
MUG = {
    "asin": "MUG0000001",
    "name": "Stone mug",
    "full_description": "",
    "small_description": "Holds tea",
    "pricing": None,
    "customization_options": "",
    "category": "garden",
    "product_category": "Home › Kitchen",
    "query": "mugs",
}
SOAP = {
    "asin": "SOAP000001",
    "name": "Lavender soap",
    "full_description": "Smells of summer",
    "small_description": [],
    "pricing": "$985.50",
    "customization_options": {"scent": [{"value": "lavender"}]},
    "category": "beauty",
    "product_category": "Beauty › Bath › Soaps",
    "query": "soaps",
}
PRODUCTS = [LAMP, MUG, SOAP]
ATTRIBUTES: dict[str, Any] = {
    "LAMP000001": {
        "attributes": ["dimmable", "easy to assemble"],
        "instruction": "Find me dimmable desk lamps",
        "instruction_attributes": ["dimmable"],
    },
    "MUG0000001": {"attributes": ["dishwasher safe"]},
    "SOAP000001": {
        "attributes": ["hand made"],
        "instruction": "Find me hand made soaps",
        "instruction_attributes": ["hand made"],
    },
}
HUMAN = {
    "MUG0000001": [
        {
            "instruction": "i want a mug that is dishwasher safe.",
            "instruction_attributes": ["dishwasher safe"],
            "instruction_options": ["stone"],
        },
        {"instruction": "any mug", "instruction_attributes": [], "instruction_options": []},
    ]
}


def write_shop(
    folder: Path,
    products: Any = PRODUCTS,
    attributes: Any = ATTRIBUTES,
    human: Any = HUMAN,
    packed: bool = False,
) -> Path:
    """Write the data files of a shop, and return their folder."""
    folder.mkdir(parents=True, exist_ok=True)
    for name, content in (("items_shuffle", products), ("items_ins_v2", attributes), ("items_human_ins", human)):
        data = json.dumps(content).encode()
        path = folder / f"{name}.json{'.gz' if packed else ''}"
        path.write_bytes(gzip.compress(data) if packed else data)
    return folder
