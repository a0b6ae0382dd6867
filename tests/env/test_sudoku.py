from __future__ import annotations

import pytest

from ragen.env.sudoku.config import SudokuEnvConfig
from ragen.env.sudoku.env import READ_LIMIT, Placement, SudokuEnv, read_placement


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
