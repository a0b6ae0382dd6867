"""A generated world of facts: entities, relations between them, a passage about each, and questions of several hops.

Everything follows from a seed. A question's phrase and the sentences of passages come from the same table of relations,
so that a player who reads English, or the scripted one, can follow a question from passage to passage.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from random import Random
from typing import NamedTuple

from ragen.errors import ConfigError

MOST_HOPS = 4
VAL_SHARE = 5
"""One question in so many, by a hash of its text, is kept for validation."""


class Passage(NamedTuple):
    """What is found.

    Attributes:
        title: Its title.
        text: All of it.
    """

    title: str
    text: str


class Hit(NamedTuple):
    """A passage that was found.

    Attributes:
        passage: The passage.
        name: What the index knows it by.
        score: How well it fits; of BM25, or a server's own.
    """

    passage: Passage
    name: str = ""
    score: float = 0.0


class Question(NamedTuple):
    """A question.

    Attributes:
        text: The question itself.
        answers: Each of these is right.
    """

    text: str
    answers: tuple[str, ...]


@dataclass(frozen=True)
class Relation:
    """What one entity is to another, or to a value.

    Attributes:
        of: The kind of entity that has it.
        to: The kind of entity that it leads to, or "" where it leads to a value.
        phrase: How a question says it, with ``@`` in place of the entity; no two begin alike.
        sentences: How a passage says it, with ``{s}`` for the entity and ``{o}`` for what it leads to.
        values: What there is to lead to, where ``to`` is "".
    """

    of: str
    to: str
    phrase: str
    sentences: tuple[str, ...]
    values: Sequence[object] = ()


_JOBS = "baker botanist carpenter chemist clockmaker engineer geologist glassblower judge mason pilot surgeon weaver"
_GOODS = (
    "bicycles candles carpets clocks kettles lamps mirrors pianos ropes saddles telescopes turbines umbrellas violins"
)
_TOPICS = (
    "astronomy bees bridges cheese deserts glaciers lighthouses mathematics migration moths opera railways salt tides"
)
_TONGUES = "Ardic Belorian Cestic Dovan Emric Farsun Galdic Hestian Ivric Jorvan Kestrian Lumic"
_COINS = "ardel brint corvo dinel elmar florn gelder harn ister jovin kelt lorin"

RELATIONS = (
    Relation("person", "town", "the birthplace of @", ("{s} was born in {o}.", "The birthplace of {s} is {o}.")),
    Relation("person", "company", "the employer of @", ("{s} works for {o}.", "The employer of {s} is {o}.")),
    Relation("person", "person", "the teacher of @", ("{s} was taught by {o}.", "The teacher of {s} was {o}.")),
    Relation(
        "person",
        "",
        "the profession of @",
        ("The profession of {s} is {o}.", "{s} earns a living as {o}."),
        _JOBS.split(),
    ),
    Relation("person", "", "the birth year of @", ("The birth year of {s} is {o}.",), range(1820, 1990)),
    Relation("town", "country", "the country where @ lies", ("{s} lies in {o}.", "The country of {s} is {o}.")),
    Relation(
        "town", "river", "the river that flows through @", ("Through {s} flows the {o}.", "{s} stands on the {o}.")
    ),
    Relation("town", "person", "the mayor of @", ("The mayor of {s} is {o}.", "{s} is governed by {o}.")),
    Relation("town", "", "the year when @ was settled", ("{s} was settled in {o}.",), range(900, 1800)),
    Relation("company", "town", "the seat of @", ("{s} has its seat in {o}.", "The seat of {s} is {o}.")),
    Relation("company", "person", "the founder of @", ("{s} was founded by {o}.", "The founder of {s} was {o}.")),
    Relation(
        "company", "", "the product of @", ("{s} makes {o}.", "The factories of {s} turn out {o}."), _GOODS.split()
    ),
    Relation("book", "person", "the author of @", ("{s} was written by {o}.", "The author of {s} is {o}.")),
    Relation("book", "town", "the setting of @", ("{s} takes place in {o}.",)),
    Relation("book", "", "the subject of @", ("The subject of {s} is {o}.", "{s} is a book on {o}."), _TOPICS.split()),
    Relation("river", "country", "the country in which @ rises", ("The {s} rises in {o}.",)),
    Relation("river", "", "the length of @ in kilometres", ("The {s} is {o} kilometres long.",), range(40, 2400)),
    Relation("country", "town", "the capital of @", ("The capital of {s} is {o}.", "{s} is ruled from {o}.")),
    Relation(
        "country", "", "the language of @", ("The language of {s} is {o}.", "{o} is spoken in {s}."), _TONGUES.split()
    ),
    Relation("country", "", "the currency of @", ("The currency of {s} is the {o}.",), _COINS.split()),
)

_SHARES = {"person": 40, "town": 20, "company": 15, "book": 15, "river": 5, "country": 5}  # percent
_INTRODUCTIONS = {
    "person": "{s} is a person of this world.",
    "town": "{s} is a town.",
    "company": "{s} is a company.",
    "book": "{s} is a book.",
    "river": "The {s} is a river.",
    "country": "{s} is a country.",
}
_FIRST = [
    "b",
    "br",
    "c",
    "d",
    "dr",
    "f",
    "g",
    "gr",
    "h",
    "j",
    "k",
    "kl",
    "l",
    "m",
    "n",
    "p",
    "pr",
    "r",
    "s",
    "st",
    "t",
    "tr",
    "v",
    "w",
    "z",
]
_MIDDLE = ["a", "e", "i", "o", "u", "ai", "ea", "io", "ou"]
_LAST = ["l", "m", "n", "r", "s", "t", "nd", "rk", "st", "x"]


@dataclass(frozen=True)
class World:
    """What there is.

    Attributes:
        kinds: The kind of each entity, by name.
        facts: What each entity's relations lead to: for each name a value for each relation of its kind, by phrase.
        passages: A passage about each entity.
    """

    kinds: dict[str, str]
    facts: dict[str, dict[str, str]]
    passages: tuple[Passage, ...]


def _word(rng: Random, syllables: int) -> str:
    parts = [rng.choice(_FIRST) + rng.choice(_MIDDLE) for _ in range(syllables)]
    return ("".join(parts) + rng.choice(_LAST)).capitalize()


def _names(rng: Random, kind: str, count: int, taken: set[str]) -> list[str]:
    """Names of one kind that no entity has; people share family names, and books and companies share words."""
    shared = [_word(rng, 2) for _ in range(max(4, count // 4))]
    found: list[str] = []
    while len(found) < count:
        name = {
            "person": lambda: f"{_word(rng, 1)} {rng.choice(shared)}",
            "company": lambda: f"{rng.choice(shared)} {rng.choice(('Works', 'Brothers', 'Trading', 'Mills'))}",
            "book": lambda: f"{rng.choice(('Song', 'Shadow', 'House', 'Winter'))} of {_word(rng, 2)}",
        }.get(kind, lambda: _word(rng, 2))()
        if name not in taken:
            taken.add(name)
            found.append(name)
        elif rng.random() < 0.1:
            shared.append(_word(rng, 2))
    return found


@lru_cache(maxsize=1)
def generator_digest() -> str:
    """What generates worlds: another digest, perhaps another world."""
    return hashlib.blake2b(Path(__file__).read_bytes(), digest_size=16).hexdigest()


@lru_cache(maxsize=4)
def generate(seed: int, entities: int) -> World:
    """The world of a seed, with so many entities."""
    rng = Random(f"world {seed} {entities}")
    taken: set[str] = set()
    by_kind = {kind: _names(rng, kind, max(2, entities * share // 100), taken) for kind, share in _SHARES.items()}
    kinds = {name: kind for kind, names in by_kind.items() for name in names}
    facts: dict[str, dict[str, str]] = {}
    passages = []
    for name, kind in kinds.items():
        facts[name], sentences = {}, []
        for relation in RELATIONS:
            if relation.of == kind:
                choices = by_kind[relation.to] if relation.to else relation.values
                value = rng.choice(choices)
                while value == name:
                    value = rng.choice(choices)
                facts[name][relation.phrase] = str(value)
                sentences.append(rng.choice(relation.sentences).format(s=name, o=value))
        rng.shuffle(sentences)
        passages.append(Passage(name, " ".join([_INTRODUCTIONS[kind].format(s=name), *sentences])))
    rng.shuffle(passages)
    return World(kinds, facts, tuple(passages))


def ask(world: World, seed: int, split: str, hops: Sequence[int]) -> Question:
    """The question of a seed.

    Args:
        world: What is asked about.
        seed: Decides it.
        split: ``"train"`` or another; no question of one is a question of the other.
        hops: How many relations it may follow.

    Raises:
        ConfigError: The world has no such question for the split.
    """
    for attempt in range(1000):
        rng = Random(f"{seed}/{attempt}")
        wanted, names = rng.choice(list(hops)), list(world.kinds)
        value = noun = rng.choice(names)
        person, visited = False, {value}
        for left in range(wanted, 0, -1):
            usable = [each for each in RELATIONS if each.of == world.kinds[value] and (left == 1 or each.to)]
            relation = rng.choice(usable)
            noun = relation.phrase.replace("@", noun)
            value, person = world.facts[value][relation.phrase], relation.to == "person"
            if value in visited:
                break
            visited.add(value)
        else:
            text = f"{'Who' if person else 'What'} is {noun}?"
            if is_held_out(text) == (split != "train"):
                return Question(text, (value,))
    raise ConfigError(f"search: the world has no question of {list(hops)} hops for the split {split!r}; add entities.")


def is_held_out(question: str) -> bool:
    """Whether a question is one of those that are kept for validation."""
    return hashlib.sha256(question.encode("utf-8", "surrogatepass")).digest()[0] % VAL_SHARE == 0


# Reading


def read_question(text: str) -> tuple[str, list[Relation]] | None:
    """Where a generated question begins, and the relations to follow from there; None if it is another.

    Args:
        text: A text in which the question stands after ``Question:``.
    """
    found = re.search(r"Question: (?:Who|What) is (the [^?\n]+)\?", text)
    if found is None:
        return None
    noun, relations = found[1], list[Relation]()
    while inside := _inside(noun):
        relation, noun = inside
        relations.insert(0, relation)
    return (noun, relations) if relations else None


def _inside(noun: str) -> tuple[Relation, str] | None:
    for relation in RELATIONS:
        before, _, after = relation.phrase.partition("@")
        if noun.startswith(before) and noun.endswith(after):
            return relation, noun[len(before) : len(noun) - len(after)]
    return None


def read_fact(relation: Relation, entity: str, text: str) -> str | None:
    """What a relation of an entity leads to, as passages say it; None where they do not."""
    for sentence in relation.sentences:
        pattern = re.escape(sentence.format(s="\0", o="\1"))
        pattern = pattern.replace(re.escape("\1"), r"(\w[\w ]*?)").replace(re.escape("\0"), re.escape(entity))
        if found := re.search(rf"(?<!\w){pattern}", text):
            return found[1]
    return None


def solve(told: str) -> str | None:
    """The next action of a player who reads only what was shown; None where the question is not a generated one.

    Args:
        told: All that was shown in the episode, the question first.
    """
    read = read_question(told)
    if read is None:
        return None
    value, relations = read
    for relation in relations:
        known = read_fact(relation, value, told)
        if known is None:
            return f"search[{value}]"
        value = known
    return f"answer[{value}]"
