"""Makes the puzzles that ship with the package.

``python -m ragen.env.countdown.generate > ragen/env/countdown/data/puzzles.jsonl`` writes the file anew, byte for byte.
Three or four different numbers from 1 to 99 each; the target is one of their signed sums, positive, at most 199 and
none of the numbers, so that every puzzle has a solution by plus and minus.
"""

from __future__ import annotations

import json
import random
import sys
from collections.abc import Iterator
from itertools import islice

COUNT = 512
SEED = 20260401
_LARGEST_NUMBER = 99
_LARGEST_TARGET = 199


def candidates(seed: int) -> Iterator[dict[str, object]]:
    """An endless stream of rows ``{nums, target}``, with repetitions."""
    rng = random.Random(seed)
    while True:
        numbers = rng.sample(range(1, _LARGEST_NUMBER + 1), rng.choice((3, 4)))
        target = sum(rng.choice((1, -1)) * number for number in numbers)
        if 0 < target <= _LARGEST_TARGET and target not in numbers:
            yield {"nums": numbers, "target": target}


def lines(count: int = COUNT, seed: int = SEED) -> list[str]:
    """Different puzzles, one per line, as JSON."""
    distinct = dict.fromkeys(json.dumps(row) for row in islice(candidates(seed), 2 * count))
    return list(islice(distinct, count))


if __name__ == "__main__":
    sys.stdout.writelines(f"{line}\n" for line in lines())
