from __future__ import annotations

import random

import pytest

from ragen.env.sudoku.config import SudokuEnvConfig
from ragen.env.sudoku.env import SudokuEnv
from ragen.env.sudoku.grid import Grid, filled_cells, make_puzzle
from ragen.env.sudoku.reply import READ_LIMIT, Placement, read_placement


def make(size: int = 4, **config: object) -> SudokuEnv:
    return SudokuEnv(SudokuEnvConfig(grid_size=size, **config))


def just_reset(seed: int = 0, size: int = 4, **config: object) -> SudokuEnv:
    env = make(size, **config)
    env.reset(seed)
    return env


def blank_cells(env: SudokuEnv) -> list[int]:
    return [index for index, number in enumerate(env.given) if not number]


def placement(env: SudokuEnv, index: int, value: int) -> str:
    row, column = divmod(index, env.config.grid_size)
    return f"place {value} at row {row + 1} col {column + 1}"


def solution_moves(env: SudokuEnv) -> list[str]:
    return [placement(env, index, env.solution[index]) for index in blank_cells(env)]


@pytest.mark.parametrize("size", [4, 9])
def test_a_filled_grid_is_drawn_as_plain_shuffles_would_draw_it(size: int) -> None:
    def plainly(cells: list[int], rng: random.Random) -> bool:
        if 0 not in cells:
            return True
        index = cells.index(0)
        numbers = list(range(1, size + 1))
        rng.shuffle(numbers)
        for number in numbers:
            if not Grid(size, cells.copy()).conflicts(index, number):
                cells[index] = number
                if plainly(cells, rng):
                    return True
                cells[index] = 0
        return False

    for seed in range(6):
        ours, theirs = random.Random(seed), random.Random(seed)
        cells = [0] * size * size
        assert plainly(cells, theirs)
        assert filled_cells(size, ours) == cells
        assert ours.getstate() == theirs.getstate()


@pytest.mark.parametrize(("share", "blanks"), [(0.4, 32), (0.5, 40), (0.6, 48), (0.0, 0), (1.0, 81)])
def test_the_blank_share_is_rounded_down_to_whole_cells(share: float, blanks: int) -> None:
    given, solution = make_puzzle(9, share, seed=1)
    assert given.count(0) == blanks
    assert all(number in (0, solved) for number, solved in zip(given, solution, strict=True))


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("place 5 at row 2 col 3", (5, 2, 3)),
        ("I PLACE 5 AT ROW 2 COL 3, for sure", (5, 2, 3)),
        ("place 5 at (2,3)", (5, 2, 3)),
        ("place 5 at ( 2 , 3 )", (5, 2, 3)),
        ("place 5 at 2, 3", (5, 2, 3)),
        ("so 5 at 2,3 it is", (5, 2, 3)),
        ("(2, 3, 5)", (5, 2, 3)),
        ("2,3,5", (5, 2, 3)),
        ("1,1,1 or rather place 5 at 2,3", (5, 2, 3)),
        ("12,13,15", (15, 12, 13)),
        ("٢,٣,٥", (5, 2, 3)),
        ("place five at row 1 col 1", None),
        ("5 at (2,3)", None),
        ("2,3", None),
        ("", None),
        ("9" * 5000 + ",1,1", None),
        (" " * READ_LIMIT + "2,3,5", None),
    ],
)
def test_six_ways_to_write_a_placement_are_understood_anywhere_in_a_text(
    text: str, found: tuple[int, int, int] | None
) -> None:
    assert read_placement(text) == (None if found is None else Placement(*found))


def test_a_right_number_earns_one_and_the_last_one_ten_more() -> None:
    env = just_reset()
    results = [env.step(move) for move in solution_moves(env)]
    assert [reward for _, reward, _, _ in results[:-1]] == [1.0] * (len(results) - 1)
    text, reward, done, info = results[-1]
    assert (reward, done, info["success"], info["cells_remaining"]) == (11.0, True, True, 0)
    assert "🎉 Congratulations! Puzzle solved!" in text


def test_another_legal_number_earns_half() -> None:
    env = just_reset(seed=3, difficulty="hard")
    index, value = next(
        (index, value)
        for index in blank_cells(env)
        for value in env._grid.valid_numbers(index)
        if value != env.solution[index]
    )
    text, reward, _, info = env.step(placement(env, index, value))
    assert (reward, info["correct_placement"], info["action_is_valid"]) == (0.5, False, True)
    assert "Valid but not optimal" in text


@pytest.mark.parametrize(
    ("move", "error"),
    [
        ("place 5 at row 1 col 1", "Number 5 is out of range (1-4)"),
        ("0,9,9", "Row 0 is out of range (1-4)"),
        ("1,9,9", "Column 9 is out of range (1-4)"),
        ("hm", "Could not parse action: 'hm'. Expected format: 'place 5 at row 2 col 3' or '2,3,5'"),
    ],
)
def test_an_impossible_placement_costs_a_tenth_and_a_step(move: str, error: str) -> None:
    env = just_reset()
    text, reward, done, info = env.step(move)
    assert (reward, done, info["error"], env.steps) == (-0.1, False, error, 1)
    assert f"❌ Invalid action format: {error}" in text
    assert env._grid.cells == env.given


def test_a_given_cell_is_never_changed() -> None:
    env = just_reset()
    index = next(index for index, number in enumerate(env.given) if number)
    text, reward, _, info = env.step(placement(env, index, env.given[index]))
    assert (reward, info["error"]) == (-0.1, "Cannot modify initial cells")
    assert "❌ Cannot modify initial cell at" in text
