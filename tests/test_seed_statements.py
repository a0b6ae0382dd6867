"""Every statement of the texts behind this package's systems is held by a test, or a page says how the package differs.

``seed_statements.yaml`` has a part for each topic of a text. Below ``holds`` are statements and the tests that hold
them; below ``differs`` are statements that the package does not follow, with the page that says so, a word of it, and
why that is better for its user.
"""

import ast
import re
from functools import cache
from pathlib import Path

import pytest
import yaml

ROOT = Path(__file__).resolve().parents[1]
PARTS = yaml.safe_load((ROOT / "tests/seed_statements.yaml").read_text("utf-8"))
HELD = [(part["seed"], says, node) for part in PARTS for says, nodes in part["holds"].items() for node in nodes.split()]
DIFFERS = [(part["seed"], says, row) for part in PARTS for says, row in part.get("differs", {}).items()]
HELD += [(seed, says, node) for seed, says, row in DIFFERS for node in row.get("test", "").split()]


@cache
def functions_of(path):
    """The functions of a file, and all its texts: ids of parameters are among them, without spaces here."""
    tree = ast.parse((ROOT / path).read_text("utf-8"))
    texts = {str(each.value).replace(" ", "_") for each in ast.walk(tree) if isinstance(each, ast.Constant)}
    return {each.name for each in tree.body if isinstance(each, ast.FunctionDef)}, texts


def section(page, heading):
    """The text of a section of a page, or all of the page."""
    text = (ROOT / page).read_text("utf-8")
    if not heading:
        return text
    for part in re.split(r"^(?=#+ )", text, flags=re.M):
        title = part.partition("\n")[0].lstrip("# ").lower()
        if re.sub(r"[^\w\s-]", "", title).strip().replace(" ", "-") == heading:
            return part
    return ""


@pytest.mark.parametrize("node", sorted({node for *_, node in HELD}), ids=str)
def test_the_test_of_a_statement_exists(node):
    path, _, name = node.partition("::")
    name, _, parameter = name.removesuffix("]").partition("[")
    functions, texts = functions_of(path)
    collected = Path(path).name.startswith("test_") and name.startswith("test_") and name in functions
    assert collected and (not parameter or parameter in texts), f"{node} is gone; which test holds its statement now?"


@pytest.mark.parametrize(("seed", "says", "row"), DIFFERS, ids=[f"{seed}: {says}" for seed, says, _ in DIFFERS])
def test_the_page_of_a_difference_says_so(seed, says, row):
    page, _, heading = row["page"].partition("#")
    assert row["word"] in section(page, heading) and row["better"]
