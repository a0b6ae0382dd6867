"""Compare the size of the code with ``size_budget.toml``; the exit code is 1 if a folder is over its budget.

A folder with a budget of its own does not count in the folder around it.

Size is measured in tokens of Python. Comments, docstrings and layout do not count, so that explaining code is free and
reformatting it gains nothing.

    python .ci/size_budget.py
"""

import ast
import io
import sys
import tokenize
import tomllib
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
LAYOUT = {
    tokenize.COMMENT,
    tokenize.NL,
    tokenize.NEWLINE,
    tokenize.INDENT,
    tokenize.DEDENT,
    tokenize.ENCODING,
    tokenize.ENDMARKER,
}


def tokens(path: Path) -> int:
    """Tokens of code in a file."""
    text = path.read_text("utf-8")
    docstrings = {
        (node.body[0].lineno, node.body[0].col_offset)
        for node in ast.walk(ast.parse(text))
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef)
        and ast.get_docstring(node, clean=False) is not None
    }
    found = tokenize.generate_tokens(io.StringIO(text).readline)
    return sum(token.type not in LAYOUT and token.start not in docstrings for token in found)


def main() -> int:
    """Print each folder's size beside its budget."""
    budget = tomllib.loads((ROOT / "size_budget.toml").read_text("utf-8"))["ktokens"]
    is_over = False
    for folder, most in budget.items():
        inner = [ROOT / each for each in budget if each.startswith(f"{folder}/")]
        files = [each for each in (ROOT / folder).rglob("*.py") if not any(map(each.is_relative_to, inner))]
        size = sum(map(tokens, files)) / 1000
        is_over |= size > most
        print(f"{folder:30} {size:7.1f} of {most:5} ktokens{'   OVER BUDGET' if size > most else ''}")
    return int(is_over)


if __name__ == "__main__":
    sys.exit(main())
