"""Families of generated tasks, each with a text, initial files, a check, and a command that does the task.

A check looks at the final files. They are values, not a file system, so links cannot mislead it.
"""

from __future__ import annotations

import io
import re
import sqlite3
import tarfile
import zlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from random import Random
from string import Template
from typing import Any

from ragen.env.terminal.layers import Entry

Home = Mapping[str, Entry]
"""Files by path relative to the home folder."""

Check = Callable[[Home], list[bool]]
"""Returns, for each goal of a task, whether it is reached."""

WORDS = re.findall(r"\w+", "error warn ready retry timeout disk network user cache login queue backup")
NAMES = re.findall(r"\w+", "ada ben cleo dan eva finn gus hana ivo joy kai lea max nora otto pia")
LARGEST_ARCHIVE = 1 << 24  # maximum bytes of an archive to unpack for a check
CITIES = re.findall(r"\w+", "Cairo Lima Oslo Quito Rome Turin")


@dataclass(frozen=True)
class Task:
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


Build = Callable[[Random, dict[str, Any], int], tuple[dict[str, Entry], Check]]


@dataclass(frozen=True)
class Family:
    """Tasks that differ in their parameters and files.

    Attributes:
        name: Its name.
        text: The instruction, with ``$k`` for the parameter k.
        solution: A command that does the task, with ``@k@`` for the parameter k.
        build: Creates the files and the check.
        parameters: The possible values of each parameter.
    """

    name: str
    text: str
    solution: str
    build: Build
    parameters: Mapping[str, Sequence[Any]]

    def task(self, rng: Random, size: int) -> Task:
        """Draw a task."""
        given = {name: rng.choice(values) for name, values in self.parameters.items()}
        files, check = self.build(rng, given, size)
        solution = self.solution
        for name, value in given.items():
            solution = solution.replace(f"@{name}@", str(value))
        return Task(Template(self.text).substitute(given), files, check, solution)


FAMILIES: dict[str, Family] = {}


def _family(text: str, solution: str, **parameters: Sequence[Any]) -> Callable[[Build], Build]:
    def register(build: Build) -> Build:
        name = build.__name__.strip("_")
        FAMILIES[name] = Family(name, text, solution, build, parameters)
        return build

    return register


# Pieces of files and checks


def _file(text: str | bytes, mode: int = 0o644) -> Entry:
    return Entry("f", mode, text.encode() if isinstance(text, str) else text)


def _content(home: Home, path: str) -> bytes | None:
    entry = home.get(path)
    return entry.data if entry is not None and entry.kind == "f" else None


def _says(home: Home, path: str, expected: str) -> bool:
    """Whether a file contains exactly these lines, apart from surrounding whitespace."""
    found = (_content(home, path) or b"").decode("utf-8", "replace")
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


# Programs, archives, git, SQL


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
    "Pack the folder project/ into project.tar.gz, without the files that end in .$kind.",
    "tar -czf project.tar.gz --exclude='*.@kind@' project",
    kind=("tmp", "bak", "log"),
)
def _pack(rng: Random, given: dict[str, Any], size: int) -> tuple[dict[str, Entry], Check]:
    kinds = (given["kind"], "py", "md")
    files = {
        f"project/{rng.choice('ab')}/{number}.{rng.choice(kinds)}": _file(_line(rng, number)) for number in range(size)
    }
    wanted = {path: entry.data for path, entry in files.items() if not path.endswith(given["kind"])}
    return files, lambda home: [_packed(_content(home, "project.tar.gz")) == wanted, _kept(home, files)]


def _packed(archive: bytes | None) -> dict[str, bytes] | None:
    """The files of an archive, the caller that made it; None where it cannot be read, or is made to fill the memory."""
    if archive is None:
        return None
    try:
        unzip = zlib.decompressobj(31)
        plain = unzip.decompress(archive, LARGEST_ARCHIVE)
        if unzip.unconsumed_tail:
            return None
        with tarfile.open(fileobj=io.BytesIO(plain)) as found:
            members = [member for member in found if member.isreg()]
            if any(member.issparse() for member in members) or sum(m.size for m in members) > LARGEST_ARCHIVE:
                return None  # holes of a few bytes are read as gigabytes
            return {member.name.removeprefix("./"): found.extractfile(member).read() for member in members}  # type: ignore[union-attr]
    except (tarfile.TarError, zlib.error, EOFError, OSError, ValueError, OverflowError):
        return None


@_family(
    "Make a git repository in repo/ with a branch '$branch', and commit all files there but those that "
    "end in .$kind, with the message '$word $name'.",
    "cd repo && git init -q -b @branch@ && git add -- $(find . -type f -not -path './.git/*' -not -name "
    "'*.@kind@') && git commit -q -m '@word@ @name@'",
    branch=("main", "trunk", "work"),
    kind=("log", "o"),
    word=("Add", "Import", "Begin"),
    name=NAMES,
)
def _git_commit(rng: Random, given: dict[str, Any], size: int) -> tuple[dict[str, Entry], Check]:
    kinds = (given["kind"], "py", "md")
    files = {
        f"repo/{rng.choice(('', 'src/'))}{number}.{rng.choice(kinds)}": _file(_line(rng, number))
        for number in range(size)
    }
    files["repo/README"] = _file("read me\n")
    wanted = {
        path.removeprefix("repo/"): entry.data
        for path, entry in files.items()
        if not path.endswith("." + given["kind"])
    }

    def check(home: Home) -> list[bool]:
        head = (_content(home, f"repo/.git/refs/heads/{given['branch']}") or b"").decode("ascii", "replace").strip()
        message, tree = _commit(home, head)
        return [message == f"{given['word']} {given['name']}", tree == wanted]

    return files, check


def _commit(home: Home, name: str) -> tuple[str, dict[str, bytes]]:
    """The message and the files of a commit of ``repo/``, read from its objects; empty where they cannot be read."""
    left = LARGEST_ARCHIVE  # bytes: objects made by hand name each other, and themselves, without end

    def loose(name: str) -> bytes:
        nonlocal left
        data = zlib.decompressobj().decompress(
            _content(home, f"repo/.git/objects/{name[:2]}/{name[2:]}") or b"", 1 << 20
        )
        left -= len(data) + len(name)
        if left < 0:
            raise zlib.error
        return data.partition(b"\0")[2]

    def files_of(name: str, above: str, deep: int) -> dict[str, bytes]:
        found: dict[str, bytes] = {}
        data = loose(name)
        while data and deep and len(found) < 10_000:
            head, _, rest = data.partition(b"\0")
            mode, _, path = head.decode("utf-8", "replace").partition(" ")
            child, data = rest[:20].hex(), rest[20:]
            found |= files_of(child, f"{above}{path}/", deep - 1) if mode == "40000" else {above + path: loose(child)}
        return found

    try:
        head, _, message = loose(name).decode("utf-8", "replace").partition("\n\n")
        tree = head.split("\n")[0].removeprefix("tree ")
        return message.strip(), files_of(tree, "", 8)
    except zlib.error:
        return "", {}


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
