"""A generated world of facts: entities, relations between them, a passage about each, and multi-hop questions.

Everything follows from a seed. Questions and passages are worded from the same table of relations, so a player that
reads English, such as the scripted one, can follow a question from passage to passage.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Sequence
from functools import lru_cache
from pathlib import Path
from random import Random
from typing import NamedTuple

from ragen.env.rows import is_of
from ragen.errors import ConfigError

MOST_HOPS = 4


class Passage(NamedTuple):
    """A document of the corpus.

    Attributes:
        title: Its title; may be "".
        text: Its text.
    """

    title: str
    text: str


class Hit(NamedTuple):
    """A search result.

    Attributes:
        passage: The passage.
        name: Its id in the index.
        score: Its score: BM25's, or the server's.
    """

    passage: Passage
    name: str = ""
    score: float = 0.0


class Question(NamedTuple):
    """A question.

    Attributes:
        text: The question.
        answers: The correct answers.
    """

    text: str
    answers: tuple[str, ...]


class Relation(NamedTuple):
    """A relation between an entity and another entity or a value.

    Attributes:
        of: The kind of the entity.
        to: The kind of the other entity; "" if the relation leads to a value.
        phrase: The wording in questions, with ``@`` for the entity; all phrases have different beginnings.
        sentences: The wordings in passages, with ``{s}`` for the entity and ``{o}`` for the other one or the value.
        values: The possible values, if ``to`` is "".
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
_TONGUES = "Ardic Belorian Cestic Dovan Emric Farsun Galdic Hestian Ivric Jorvan Kestrian Lumic"
_COINS = "ardel brint corvo dinel elmar florn gelder harn ister jovin kelt lorin"

_VALUES: dict[str, Sequence[object]] = {
    "a job": _JOBS.split(),
    "a good": _GOODS.split(),
    "a tongue": _TONGUES.split(),
    "a coin": _COINS.split(),
    "a birth year": range(1820, 1990),
    "a year": range(900, 1800),
}
_TABLE = """
    person | town | the birthplace of @ | {s} was born in {o}. | The birthplace of {s} is {o}.
    person | company | the employer of @ | {s} works for {o}. | The employer of {s} is {o}.
    person | person | the teacher of @ | {s} was taught by {o}. | The teacher of {s} was {o}.
    person | a job | the profession of @ | The profession of {s} is {o}. | {s} earns a living as {o}.
    person | a birth year | the birth year of @ | The birth year of {s} is {o}.
    town | country | the country where @ lies | {s} lies in {o}. | The country of {s} is {o}.
    town | person | the mayor of @ | The mayor of {s} is {o}. | {s} is governed by {o}.
    town | a year | the year when @ was settled | {s} was settled in {o}.
    company | town | the seat of @ | {s} has its seat in {o}. | The seat of {s} is {o}.
    company | person | the founder of @ | {s} was founded by {o}. | The founder of {s} was {o}.
    company | a good | the product of @ | {s} makes {o}. | The factories of {s} turn out {o}.
    country | town | the capital of @ | The capital of {s} is {o}. | {s} is ruled from {o}.
    country | a tongue | the language of @ | The language of {s} is {o}. | {o} is spoken in {s}.
    country | a coin | the currency of @ | The currency of {s} is the {o}.
"""


def _relation(line: str) -> Relation:
    of, to, phrase, *sentences = map(str.strip, line.split("|"))
    return Relation(of, "" if to in _VALUES else to, phrase, tuple(sentences), _VALUES.get(to, ()))


RELATIONS = tuple(map(_relation, _TABLE.strip().splitlines()))

_SHARES = {"person": 50, "town": 25, "company": 20, "country": 5}  # percent
_INTRODUCTIONS = {
    "person": "{s} is a person of this world.",
    "town": "{s} is a town.",
    "company": "{s} is a company.",
    "country": "{s} is a country.",
}
_FIRST = "b br c d dr f g gr h j k kl l m n p pr r s st t tr v w z"
_MIDDLE = "a e i o u ai ea io ou"
_LAST = "l m n r s t nd rk st x"


class World(NamedTuple):
    """A generated world.

    Attributes:
        kinds: The kind of each entity, by name.
        facts: The facts about each entity, by its name: the target of each relation, by the relation's phrase.
        passages: A passage about each entity.
    """

    kinds: dict[str, str]
    facts: dict[str, dict[str, str]]
    passages: tuple[Passage, ...]


def _word(rng: Random, syllables: int) -> str:
    first, middle, last = _FIRST.split(), _MIDDLE.split(), _LAST.split()
    parts = [rng.choice(first) + rng.choice(middle) for _ in range(syllables)]
    return ("".join(parts) + rng.choice(last)).capitalize()


def _names(rng: Random, kind: str, count: int, taken: set[str]) -> list[str]:
    """Draw unused names; people share family names, and companies share words."""
    shared = [_word(rng, 2) for _ in range(max(4, count // 4))]
    found: list[str] = []
    while len(found) < count:
        name = {
            "person": lambda: f"{_word(rng, 1)} {rng.choice(shared)}",
            "company": lambda: f"{rng.choice(shared)} {rng.choice(('Works', 'Brothers', 'Trading', 'Mills'))}",
        }.get(kind, lambda: _word(rng, 2))()
        if name not in taken:
            taken.add(name)
            found.append(name)
        elif rng.random() < 0.1:
            shared.append(_word(rng, 2))
    return found


@lru_cache(maxsize=1)
def generator_digest() -> str:
    """A digest of this file, part of the cache key: a changed generator may generate other worlds."""
    return hashlib.blake2b(Path(__file__).read_bytes(), digest_size=16).hexdigest()


@lru_cache(maxsize=4)
def generate(seed: int, entities: int) -> World:
    """Generate the world of a seed with about this number of entities."""
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
    """Generate the question of a seed.

    Args:
        world: The world to ask about.
        seed: The seed.
        split: ``"train"`` or another name; these two splits share no question.
        hops: The possible numbers of relations to follow.

    Raises:
        ConfigError: No such question was found for the split.
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
            if is_of(split, text):
                return Question(text, (value,))
    raise ConfigError(f"search: the world has no question of {list(hops)} hops for the split {split!r}; add entities.")


# Reading


def read_question(text: str) -> tuple[str, list[Relation]] | None:
    """Parse a generated question into its first entity and the relations to follow; None for any other question.

    Args:
        text: A text that contains the question after ``Question:``.
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
    """The target of an entity's relation according to passages in a text; None if they do not mention it."""
    for sentence in relation.sentences:
        pattern = re.escape(sentence.format(s="\0", o="\1"))
        pattern = pattern.replace(re.escape("\1"), r"(\w[\w ]*?)").replace(re.escape("\0"), re.escape(entity))
        if found := re.search(rf"(?<!\w){pattern}", text):
            return found[1]
    return None


def solve(told: str) -> str | None:
    """The scripted player's next action, from the observations alone; None if the question was not generated.

    Args:
        told: All observations of the episode, starting with the question.
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
