"""Families of generated tasks, each with a text, initial files, a check, and a command that does the task.

A check looks at the final files. They are values, not a file system, so links cannot mislead it.
"""

from __future__ import annotations

import re
import sqlite3
from collections.abc import Callable, Mapping, Sequence
from random import Random
from string import Template
from typing import Any, NamedTuple

from ragen.env.terminal.layers import Entry

Home = Mapping[str, Entry]
"""Files by path relative to the home folder."""

Check = Callable[[Home], list[bool]]
"""Returns, for each goal of a task, whether it is reached."""

WORDS = re.findall(r"\w+", "error warn ready retry timeout disk network user cache login queue backup")
NAMES = re.findall(r"\w+", "ada ben cleo dan eva finn gus hana ivo joy kai lea max nora otto pia")
CITIES = re.findall(r"\w+", "Cairo Lima Oslo Quito Rome Turin")


class Task(NamedTuple):
    """A task.

    Attributes:
        text: The instruction.
        files: The initial files of the home folder.
        check: Decides which goals are reached.
        solution: A command that does the task; "" where none is known.
    """

    text: str
    files: Home
    check: Check
    solution: str = ""


Family = Callable[[Random, int], Task]
"""Draws a task with about this number of files; its parameters vary."""

Build = Callable[[Random, dict[str, Any], int], tuple[dict[str, Entry], Check]]
"""Creates the files and the check of a task with these parameters."""

FAMILIES: dict[str, Family] = {}


def _family(text: str, solution: str, **parameters: Sequence[Any]) -> Callable[[Build], Build]:
    """Register a family by the function that builds its tasks.

    Args:
        text: The instruction, with ``$k`` for the parameter k.
        solution: A command that does the task, with ``@k@`` for the parameter k.
        parameters: The possible values of each parameter.
    """

    def register(build: Build) -> Build:
        def task(rng: Random, size: int) -> Task:
            given = {name: rng.choice(values) for name, values in parameters.items()}
            files, check = build(rng, given, size)
            command = re.sub(r"@(\w+)@", lambda found: str(given[found[1]]), solution)
            return Task(Template(text).substitute(given), files, check, command)

        FAMILIES[build.__name__.strip("_")] = task
        return build

    return register


# Pieces of files and checks


def _file(text: str | bytes, mode: int = 0o644) -> Entry:
    return Entry("f", mode, text.encode() if isinstance(text, str) else text)


def _says(home: Home, path: str, expected: str) -> bool:
    """Whether a file contains exactly these lines, apart from surrounding whitespace."""
    entry = home.get(path, Entry("d", 0))
    found = entry.data.decode("utf-8", "replace") if entry.kind == "f" else ""
    return [line.strip() for line in found.strip().splitlines()] == expected.splitlines()


def _answers(path: str, expected: object) -> Check:
    return lambda home: [_says(home, path, str(expected))]


def _kept(home: Home, files: Home) -> bool:
    """Whether all of these files are unchanged."""
    return all(home.get(path) == entry for path, entry in files.items())


def _line(rng: Random, number: int) -> str:
    return f"{number:04} {rng.choice(WORDS)} {rng.choice(NAMES)} {rng.randrange(10**5)}"


def _lines(rng: Random, most: int) -> list[str]:
    return [_line(rng, number) for number in range(rng.randint(3, most))]


# Finding and counting


@_family(
    "Count the lines that contain the word '$word' in all files below logs/ that end in .log, and write "
    "the number to answer.txt.",
    "grep -rhw --include='*.log' '@word@' logs | wc -l > answer.txt",
    word=WORDS,
)
def _count_lines(rng: Random, given: dict[str, Any], size: int) -> tuple[dict[str, Entry], Check]:
    files, count = {}, 0
    for number in range(size):
        lines, kind = _lines(rng, 40), rng.choice(("log", "log", "txt"))
        files[f"logs/{rng.choice('abc')}/part{number}.{kind}"] = _file("\n".join(lines) + "\n")
        count += sum(f" {given['word']} " in line for line in lines) if kind == "log" else 0
    return files, _answers("answer.txt", count)


@_family(
    "Exactly one file below docs/ contains the text '$word-$number'. Write its path, relative to your "
    "home folder, to answer.txt.",
    "grep -rlF '@word@-@number@' docs > answer.txt",
    word=WORDS,
    number=range(1000, 1200),
)
def _find_text(rng: Random, given: dict[str, Any], size: int) -> tuple[dict[str, Entry], Check]:
    texts = [_lines(rng, 20) for _ in range(size)]
    chosen = rng.randrange(size)
    texts[chosen].insert(rng.randrange(len(texts[chosen])), f"see {given['word']}-{given['number']} for more")
    paths = [f"docs/{rng.choice(NAMES)}/{number}.md" for number in range(size)]
    files = {path: _file("\n".join(text) + "\n") for path, text in zip(paths, texts, strict=True)}
    return files, _answers("answer.txt", paths[chosen])


# Changing texts


@_family(
    "In every file below site/ that ends in .$kind, replace each '$old' by '$new'; change nothing else.",
    "find site -name '*.@kind@' -exec sed -i 's/@old@/@new@/g' {} +",
    kind=("html", "css"),
    old=("color", "center", "gray"),
    new=("colour", "centre", "grey"),
)
def _replace(rng: Random, given: dict[str, Any], size: int) -> tuple[dict[str, Entry], Check]:
    files = {}
    for number in range(size):
        words = [rng.choice((given["old"], *NAMES)) for _ in range(rng.randint(3, 30))]
        files[f"site/{rng.choice('ab')}/{number}.{rng.choice(('html', 'css'))}"] = _file(" ".join(words) + "\n")
    old, new = given["old"].encode(), given["new"].encode()
    wanted = {
        path: entry._replace(data=entry.data.replace(old, new))
        for path, entry in files.items()
        if path.endswith(given["kind"])
    }
    others = {path: entry for path, entry in files.items() if path not in wanted}
    return files, lambda home: [_kept(home, wanted), _kept(home, others)]


# Moving files, rights, links


@_family(
    "Make every .$kind file below tools/ executable for its owner, and take all rights on the files "
    "below secret/ away from everyone but their owner.",
    "find tools -name '*.@kind@' -exec chmod u+x {} +; find secret -type f -exec chmod go-rwx {} +",
    kind=("sh", "py", "pl"),
)
def _permissions(rng: Random, given: dict[str, Any], size: int) -> tuple[dict[str, Entry], Check]:
    kinds = (given["kind"], "txt", "md")
    tools = {f"tools/{number}.{rng.choice(kinds)}": _file("true\n", 0o644) for number in range(size)}
    secret = {
        f"secret/{number}.key": _file(_line(rng, number), rng.choice((0o644, 0o664, 0o600))) for number in range(3)
    }

    def check(home: Home) -> list[bool]:
        found = {path: home.get(path, Entry("f", 0)).mode for path in (*tools, *secret)}
        runs = all(bool(found[path] & 0o100) == path.endswith(given["kind"]) for path in tools)
        return [runs, all(found[path] & 0o777 == secret[path].mode & 0o700 for path in secret)]

    return {**tools, **secret}, check


# Programs, SQL


@_family(
    "The script run.sh is to print the $what from 1 to $n, one a line, but it does not work. Repair it, "
    "make it executable, and write what it prints to out.txt.",
    'printf \'#!/bin/bash\\nfor i in $(seq 1 @n@); do if [ "@what@" = numbers ]; then echo $i; else echo '
    "$((i*i)); fi; done\\n' > run.sh; chmod +x run.sh; ./run.sh > out.txt",
    what=("numbers", "squares of the numbers"),
    n=range(5, 30),
)
def _fix_script(rng: Random, given: dict[str, Any], size: int) -> tuple[dict[str, Entry], Check]:
    body = "i" if given["what"] == "numbers" else "i*i"
    right = f"#!/bin/bash\nfor i in $(seq 1 {given['n']}); do\n    echo $(({body}))\ndone\n"
    wrong = rng.choice(
        (
            right.replace("done\n", ""),
            right.replace("seq 1", "seq 2"),
            right.replace("for i in", "for j in"),
            right.replace("; do", ""),
        )
    )
    numbers = range(1, given["n"] + 1)
    expected = "\n".join(str(i if body == "i" else i * i) for i in numbers)

    def check(home: Home) -> list[bool]:
        script = home.get("run.sh", Entry("d", 0))
        repaired = script.kind == "f" and bool(script.mode & 0o100) and script.data.decode("utf-8", "replace") != wrong
        return [repaired, _says(home, "out.txt", expected)]

    return {"run.sh": _file(wrong)}, check


@_family(
    "shop.db is an SQLite database with the tables customers(id, name, city) and orders(id, customer, "
    "amount). Write the name of the customer of $city whose orders have the $what total amount to "
    "answer.txt.",
    'sqlite3 shop.db "select c.name from customers c join orders o on o.customer = c.id where c.city = '
    "'@city@' group by c.id order by sum(amount) * iif('@what@' = 'largest', -1, 1) limit 1\" > answer.txt",
    city=CITIES,
    what=("largest", "smallest"),
)
def _sql_best(rng: Random, given: dict[str, Any], size: int) -> tuple[dict[str, Entry], Check]:
    names = rng.sample(NAMES, min(len(NAMES), 6 + size // 4))
    customers = [
        (number, name, given["city"] if number < 3 else rng.choice(CITIES)) for number, name in enumerate(names)
    ]
    totals = dict(zip(range(len(names)), rng.sample(range(100, 900), len(names)), strict=True))
    orders = []
    for customer, total in totals.items():
        first = rng.randint(1, total - 1)
        orders += [(customer, first), (customer, total - first)]
    rng.shuffle(orders)
    choose = max if given["what"] == "largest" else min
    best = choose(
        (customer for customer in customers if customer[2] == given["city"]), key=lambda each: totals[each[0]]
    )
    return {"shop.db": _file(_database(customers, orders))}, _answers("answer.txt", best[1])


def _database(customers: Sequence[tuple[Any, ...]], orders: Sequence[tuple[int, int]]) -> bytes:
    database = sqlite3.connect(":memory:")
    try:
        database.execute("create table customers(id integer primary key, name text, city text)")
        database.execute("create table orders(id integer primary key, customer integer, amount integer)")
        database.executemany("insert into customers values(?, ?, ?)", customers)
        database.executemany("insert into orders(customer, amount) values(?, ?)", orders)
        database.commit()
        return bytes(database.serialize())
    finally:
        database.close()
