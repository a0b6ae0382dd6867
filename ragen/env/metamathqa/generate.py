"""Makes the word problems that ship with the package.

``python -m ragen.env.metamathqa.generate > ragen/env/metamathqa/data/problems.jsonl`` writes the file anew, byte for
byte. Every problem comes from one of the templates below: a question, the steps of its solution, and a whole number as
the answer, in the form of MetaMathQA's rows.
"""

from __future__ import annotations

import json
import random
import sys
from collections.abc import Callable, Iterator
from itertools import cycle, islice

COUNT = 384
SEED = 20260402

Problem = tuple[str, list[str], int]
"""The question, the steps of the solution, the answer."""

_NAMES = (
    *("Amina", "Bruno", "Chloe", "Daniel", "Elif", "Farid", "Greta", "Hugo", "Ines", "Jonas", "Kavya", "Luca"),
    *("Mei", "Nadia", "Oskar", "Priya", "Quentin", "Rosa", "Samir", "Tomas", "Uma", "Viktor", "Wanda", "Yusuf"),
)
_THINGS = ("stamps", "shells", "stickers", "beads", "cards", "coins", "buttons", "postcards")


def _shelves(rng: random.Random) -> Problem:
    shelves, books, lent = rng.randint(3, 9), rng.randint(12, 30), rng.randint(5, 30)
    total = shelves * books
    return (
        f"A library corner has {shelves} shelves with {books} books on each. On Monday {lent} of the books are lent "
        "out. How many books are still on the shelves?",
        [f"There are {shelves} * {books} = {total} books.", f"After lending, {total} - {lent} = {total - lent} stay."],
        total - lent,
    )


def _trip(rng: random.Random) -> Problem:
    speed, hours, extra = rng.randrange(40, 95, 5), rng.randint(2, 6), rng.randint(10, 90)
    distance = speed * hours
    return (
        f"A bus drives {hours} hours at {speed} kilometres an hour and then {extra} kilometres more through a town. "
        "How many kilometres does it drive in all?",
        [
            f"In {hours} hours it drives {speed} * {hours} = {distance} km.",
            f"{distance} + {extra} = {distance + extra}.",
        ],
        distance + extra,
    )


def _sharing(rng: random.Random) -> Problem:
    name, thing, friends = rng.choice(_NAMES), rng.choice(_THINGS), rng.randint(3, 8)
    each, kept = rng.randint(4, 15), rng.randint(3, 20)
    total = friends * each + kept
    return (
        f"{name} has {total} {thing}, keeps {kept} of them and shares the others equally among {friends} friends. "
        f"How many {thing} does each friend get?",
        [f"There are {total} - {kept} = {total - kept} {thing} to share.", f"{total - kept} / {friends} = {each}."],
        each,
    )


def _fence(rng: random.Random) -> Problem:
    width, length = rng.randint(4, 25), rng.randint(26, 60)
    return (
        f"A rectangular garden is {length} metres long and {width} metres wide. How many metres of fence go all the "
        "way around it?",
        [f"Length and width together are {length} + {width} = {length + width}.", "The fence is twice as long."],
        2 * (length + width),
    )


def _discount(rng: random.Random) -> Problem:
    name, percent = rng.choice(_NAMES), rng.choice((10, 20, 25, 50))
    price = rng.randrange(40, 400, 20)
    off = price * percent // 100
    return (
        f"A coat costs {price} euros. {name} buys it at a discount of {percent} percent. How many euros does {name} "
        "pay?",
        [f"{percent}% of {price} is {off}.", f"{price} - {off} = {price - off}."],
        price - off,
    )


def _ages(rng: random.Random) -> Problem:
    older, younger = rng.sample(_NAMES, 2)
    age, factor, years = rng.randint(4, 12), rng.randint(2, 4), rng.randint(3, 10)
    now = age * factor
    return (
        f"{younger} is {age} years old and {older} is {factor} times as old. How old will {older} be in {years} years?",
        [f"{older} is {factor} * {age} = {now} years old now.", f"{now} + {years} = {now + years}."],
        now + years,
    )


def _savings(rng: random.Random) -> Problem:
    name, start = rng.choice(_NAMES), rng.randint(10, 60)
    weekly, weeks = rng.randint(4, 15), rng.randint(4, 20)
    saved = weekly * weeks
    return (
        f"{name} has {start} euros and saves {weekly} euros a week. How many euros does {name} have after {weeks} "
        "weeks?",
        [f"{weeks} weeks bring {weeks} * {weekly} = {saved}.", f"{start} + {saved} = {start + saved}."],
        start + saved,
    )


def _left_over(rng: random.Random) -> Problem:
    eggs, box = rng.randint(50, 200), rng.choice((6, 10, 12))
    return (
        f"A farm packs {eggs} eggs into boxes of {box}. How many eggs are left over when as many boxes as possible "
        "are full?",
        [f"{eggs // box} boxes hold {eggs // box} * {box} = {eggs // box * box} eggs.", f"{eggs % box} are left."],
        eggs % box,
    )


def _tickets(rng: random.Random) -> Problem:
    adult, child = rng.randint(9, 18), rng.randint(3, 8)
    adults, children = rng.randint(2, 6), rng.randint(2, 9)
    return (
        f"A museum ticket costs {adult} euros for an adult and {child} euros for a child. How many euros do {adults} "
        f"adults and {children} children pay together?",
        [
            f"The adults pay {adults} * {adult} = {adults * adult}.",
            f"The children pay {children} * {child} = {children * child}.",
            f"{adults * adult} + {children * child} = {adults * adult + children * child}.",
        ],
        adults * adult + children * child,
    )


def _tank(rng: random.Random) -> Problem:
    fill, leak, minutes = rng.randint(9, 25), rng.randint(2, 8), rng.randint(5, 30)
    net = fill - leak
    return (
        f"A pump brings {fill} litres of water a minute into an empty tank that loses {leak} litres a minute through a "
        f"crack. How many litres are in the tank after {minutes} minutes?",
        [f"Each minute adds {fill} - {leak} = {net} litres.", f"{net} * {minutes} = {net * minutes}."],
        net * minutes,
    )


def _two_numbers(rng: random.Random) -> Problem:
    small, difference = rng.randint(5, 50), rng.randint(3, 40)
    large = small + difference
    return (
        f"The sum of two numbers is {small + large} and their difference is {difference}. What is the larger number?",
        [
            f"Twice the larger number is {small + large} + {difference} = {2 * large}.",
            f"{2 * large} / 2 = {large}.",
        ],
        large,
    )


def _equation(rng: random.Random) -> Problem:
    factor, shift, root = rng.randint(2, 9), rng.randint(1, 30), rng.randint(2, 20)
    right = factor * root + shift
    return (
        f"If {factor}x + {shift} = {right}, what is the value of x?",
        [f"{factor}x = {right} - {shift} = {right - shift}.", f"x = {right - shift} / {factor} = {root}."],
        root,
    )


def _average(rng: random.Random) -> Problem:
    name, mean = rng.choice(_NAMES), rng.randint(12, 40)
    spread, skew = rng.randint(1, 8), rng.randint(0, 3)
    scores = (mean - spread, mean + spread + skew, mean - skew)
    return (
        f"{name} scores {scores[0]}, {scores[1]} and {scores[2]} points in three games. What is the average?",
        [f"Together these are {sum(scores)} points.", f"{sum(scores)} / 3 = {mean}."],
        mean,
    )


def _clock(rng: random.Random) -> Problem:
    hours, minutes, each = rng.randint(1, 3), rng.randrange(5, 60, 5), rng.randint(20, 45)
    total = 60 * hours + minutes
    return (
        f"A film lasts {hours} hours and {minutes} minutes. Before it there are {each} minutes of other things. How "
        "many minutes does the whole evening last?",
        [f"The film lasts {hours} * 60 + {minutes} = {total} minutes.", f"{total} + {each} = {total + each}."],
        total + each,
    )


def _sequence(rng: random.Random) -> Problem:
    first, gap, place = rng.randint(1, 20), rng.randint(2, 12), rng.randint(6, 20)
    jumps = place - 1
    return (
        f"A sequence begins with {first} and each term is {gap} more than the one before. What is term number {place}?",
        [
            f"Term {place} is {jumps} jumps of {gap} after the first.",
            f"{first} + {jumps} * {gap} = {first + jumps * gap}.",
        ],
        first + jumps * gap,
    )


def _rows_of_seats(rng: random.Random) -> Problem:
    rows, seats, share = rng.randint(6, 20), rng.randrange(10, 32, 2), rng.choice((2, 4))
    seats -= seats % share
    total = rows * seats
    word = {2: "half", 4: "a quarter"}[share]
    return (
        f"A hall has {rows} rows of {seats} seats, and {word} of the seats are taken. How many seats are free?",
        [f"There are {rows} * {seats} = {total} seats.", f"{total} / {share} = {total // share} are taken."],
        total - total // share,
    )


TEMPLATES: tuple[Callable[[random.Random], Problem], ...] = (
    _shelves,
    _trip,
    _sharing,
    _fence,
    _discount,
    _ages,
    _savings,
    _left_over,
    _tickets,
    _tank,
    _two_numbers,
    _equation,
    _average,
    _clock,
    _sequence,
    _rows_of_seats,
)


def candidates(seed: int) -> Iterator[dict[str, str]]:
    """An endless stream of rows ``{query, response, type}`` from all templates in turn, with repetitions."""
    rng = random.Random(seed)
    for template in cycle(TEMPLATES):
        question, steps, answer = template(rng)
        response = "\n".join([*steps, f"The answer is: {answer}"])
        yield {"query": question, "response": response, "type": template.__name__.strip("_")}


def lines(count: int = COUNT, seed: int = SEED) -> list[str]:
    """Different problems, one per line, as JSON."""
    distinct = dict.fromkeys(json.dumps(row) for row in islice(candidates(seed), 2 * count))
    return list(islice(distinct, count))


if __name__ == "__main__":
    sys.stdout.writelines(f"{line}\n" for line in lines())
