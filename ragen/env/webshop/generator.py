"""Generates the catalogue that ships with the package: ``python -m ragen.env.webshop.generator [DIRECTORY]``.

The files depend only on one seeded generator and the words in ``data/vocabulary.json``, so they can be reproduced
exactly. Brands and products are invented. The files' format is that of WebShop's data
(``items_shuffle*.json``, ``items_ins_v2*.json``, ``items_human_ins.json``), with ``customer_reviews`` added to each
product.

In the vocabulary, an attribute is an adjective of about two words that fits after "is", a use fits after "for", and
``"@name"`` refers to a list that several kinds of products share.
"""

from __future__ import annotations

import gzip
import json
import random
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ragen.env.webshop.source import BUILTIN_DIR

SEED = 2025
PER_KIND = 12  # products of each kind
VOCABULARY = BUILTIN_DIR / "vocabulary.json"
FILES = ("items_shuffle.json.gz", "items_ins_v2.json.gz", "items_human_ins.json.gz")

_TITLES = (
    "{brand} {adjective} {one}, {first} and {second}",
    "{brand} {one} - {first}, {adjective} design for {use}",
    "{adjective} {one} by {brand}, {first}, made for {use}",
    "{brand} {first} {one}, {adjective} series",
)
_DESCRIPTIONS = (
    "Made for {use}, and made to stay. It is {second}, and it looks at home anywhere.",
    "We tried many before we were happy with this one: {first}, {second}, and nothing that could break.",
    "{brand} started in a small workshop. This is what people come back for, most of all for {use}.",
    "Plain, sturdy and {first}. Take it along for {use}.",
    "Good things need few words. It is {third}, and it comes with a two year promise.",
)
_FEATURES = (
    "{quality}: we checked that it is {attribute}, and check again with every batch.",
    "{quality}: being {attribute}, it spares you trouble in everyday life.",
    "{quality}: nobody should have to ask whether it is {attribute}.",
    "{quality}: yes, it is {attribute}, and it stays that way.",
)
_EXTRAS = (
    "Comes in a box of recycled cardboard.",
    "Questions? We answer within a day.",
    "A gift that is always right, for {use} and more.",
    "Designed by {brand}, in use every day.",
)
_MADE_UP = (
    "i am looking for {many} that are {wanted}",
    "find me {wanted} {many}",
    "i need {many} for {use}, and they should be {wanted}",
    "please show me {many} which are {wanted}",
)
_HUMAN = (
    "I want a {wanted} {one}, {chosen}.",
    "Could you get me a {one} for {use}? It has to be {wanted}. I would like {chosen}.",
    "looking for something {wanted}: a {one}, {chosen}",
    "My old {one} broke. The new one should be {wanted}, and I prefer {chosen}.",
)
_PRAISE = ("Just right", "Would buy it again", "Better than I thought", "A gift that was liked")
_BLAME = ("Not for me", "Came late", "Smaller than I thought", "It does the job")
_REVIEWS = (
    "I use it for {use} and it really is {attribute}.",
    "My sister has the same one, that is how I know it lasts.",
    "{attribute}, as promised. The color is as in the picture.",
    "Ordered two, for {use}. Fine for the price.",
)


@dataclass(frozen=True)
class Kind:
    """A kind of product.

    Attributes:
        one: Its name in the singular.
        many: Its name in the plural, which is also the query that finds it.
        department: The shop's department.
        path: Its categories, from the widest to the narrowest.
        price: The lowest and the highest price in dollars.
        options: The options of the product: values by name.
        attributes: Its possible attributes.
        use: Its possible uses.
    """

    one: str
    many: str
    department: str
    path: str
    price: tuple[float, float]
    options: dict[str, list[str]]
    attributes: list[str]
    use: list[str]


@dataclass(frozen=True)
class Vocabulary:
    """The words of the catalogue.

    Attributes:
        brands: Invented names.
        adjectives: Possible first words of a product's name.
        kinds: The kinds of products.
    """

    brands: list[str]
    adjectives: list[str]
    kinds: list[Kind]


def read_vocabulary(path: Path = VOCABULARY) -> Vocabulary:
    """Read the words, and resolve references to shared lists."""
    words = json.loads(path.read_text("utf-8"))
    kinds = []
    for kind in words["kinds"]:
        options = {name: _shared(words["values"], values) for name, values in kind.pop("options").items()}
        kinds.append(
            Kind(**kind | {"options": options, "attributes": _shared(words["attributes"], kind["attributes"])})
        )
    return Vocabulary(words["brands"], words["adjectives"], kinds)


def _shared(lists: dict[str, list[str]], values: str | list[str]) -> list[str]:
    found: list[str] = []
    for value in [values] if isinstance(values, str) else values:
        found += lists[value[1:]] if value.startswith("@") else [value]
    return found


def generate(seed: int = SEED) -> tuple[list[dict[str, Any]], dict[str, Any], dict[str, Any]]:
    """The contents of the three files: products, their attributes and instructions, and people's instructions."""
    rng, words = random.Random(seed), read_vocabulary()
    products, attributes, human = [], {}, {}
    for kind in words.kinds:
        for _ in range(PER_KIND):
            product, has = _product(rng, words, kind)
            products.append(product)
            attributes[product["asin"]] = {"attributes": has, **_instruction(rng, kind, has)}
            if rng.random() < 0.5:
                human[product["asin"]] = [_human_instruction(rng, kind, product, has)]
    rng.shuffle(products)
    return products, attributes, human


def write(directory: Path) -> None:
    """Write the compressed files; equal contents yield equal files."""
    directory.mkdir(parents=True, exist_ok=True)
    for name, content in zip(FILES, generate(), strict=True):
        data = json.dumps(content, ensure_ascii=False, separators=(",", ":")).encode()
        (directory / name).write_bytes(gzip.compress(data, 9, mtime=0))


def _product(rng: random.Random, vocabulary: Vocabulary, kind: Kind) -> tuple[dict[str, Any], list[str]]:
    has = rng.sample(kind.attributes, rng.randint(3, 5))
    words = {
        "brand": rng.choice(vocabulary.brands),
        "adjective": rng.choice(vocabulary.adjectives),
        "one": kind.one,
        "use": rng.choice(kind.use),
    }
    words |= dict(zip(("first", "second", "third"), has, strict=False))
    product = {
        "asin": "R" + "".join(rng.choices("0123456789ABCDEFGHJKLMNPQRSTUVWXYZ", k=9)),
        "name": _capitalized(rng.choice(_TITLES).format(**words)),
        "full_description": " ".join(_capitalized(text.format(**words)) for text in rng.sample(_DESCRIPTIONS, 2)),
        "small_description": _features(rng, has, words),
        "pricing": _pricing(rng, kind.price),
        "customization_options": _options(rng, kind),
        "category": kind.department,
        "product_category": kind.path,
        "query": kind.many,
        "customer_reviews": _reviews(rng, has, words),
    }
    return product, has


def _features(rng: random.Random, has: list[str], words: dict[str, str]) -> list[str]:
    """A feature for each attribute except the last, which is only in the list of attributes, and an extra."""
    told = [rng.choice(_FEATURES).format(quality=one.upper(), attribute=one) for one in has[:-1]]
    return [*told, rng.choice(_EXTRAS).format(**words)]


def _pricing(rng: random.Random, price: tuple[float, float]) -> str:
    low = round(rng.uniform(*price)) - 0.01
    if rng.random() < 0.7:
        return f"${low:.2f}"
    return f"${low:.2f}${low + round(rng.uniform(0.1, 0.8) * low):.2f}"


def _options(rng: random.Random, kind: Kind) -> dict[str, list[dict[str, str]]]:
    most = 4 if len(kind.options) < 3 else 3
    options = {}
    for name, values in kind.options.items():
        chosen = set(rng.sample(values, min(len(values), rng.randint(2, most))))
        options[name] = [{"value": value} for value in values if value in chosen]
    return options


def _reviews(rng: random.Random, has: list[str], words: dict[str, str]) -> list[dict[str, Any]]:
    reviews = []
    for _ in range(rng.randint(0, 3)):
        score = rng.choices((2, 3, 4, 5), (1, 2, 4, 6))[0]
        body = rng.choice(_REVIEWS).format(attribute=rng.choice(has), **words)
        title = rng.choice(_PRAISE if score > 3 else _BLAME)
        reviews.append({"title": title, "score": score, "body": _capitalized(body)})
    return reviews


def _instruction(rng: random.Random, kind: Kind, has: list[str]) -> dict[str, Any]:
    wanted = rng.sample(has, rng.randint(1, min(3, len(has))))
    text = rng.choice(_MADE_UP).format(many=kind.many, wanted=_listed(wanted), use=rng.choice(kind.use))
    return {"instruction": text, "instruction_attributes": wanted}


def _human_instruction(rng: random.Random, kind: Kind, product: dict[str, Any], has: list[str]) -> dict[str, Any]:
    wanted = rng.sample(has, rng.randint(1, 2))
    chosen = {name: rng.choice(values)["value"] for name, values in product["customization_options"].items()}
    told = _listed([f"{name} {value}" for name, value in chosen.items()])
    text = rng.choice(_HUMAN).format(wanted=_listed(wanted), one=kind.one, use=rng.choice(kind.use), chosen=told)
    return {"instruction": text, "instruction_attributes": wanted, "instruction_options": list(chosen.values())}


def _listed(words: list[str]) -> str:
    return " and ".join([", ".join(words[:-1]), words[-1]] if len(words) > 1 else words)


def _capitalized(text: str) -> str:
    return text[:1].upper() + text[1:]


if __name__ == "__main__":
    write(Path(sys.argv[1]) if len(sys.argv) > 1 else BUILTIN_DIR)
