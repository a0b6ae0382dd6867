r"""String expressions of somebody's Python source to texts with slots; the source is parsed and never run.

``f"Turn {idx + 1}:\n"`` becomes ``Turn {turn}:\n``. What stands in braces is recognised by what it asks for, such as
a subscript ``['state']``, or by the name that it has in RAGEN; :data:`NAMES` and :data:`KEYS` list both.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator, Mapping
from string import Formatter

from ragen.llm_agent.prompting.template import escaped

KEYS = {
    "state": "observation",
    "actions_left": "actions_left",
    "reward": "reward",
    "llm_response": "reply",
    "max_tokens": "max_tokens",
    "max_actions_per_traj": "max_actions",
}
"""What a subscript or a ``.get`` asks for, and the slot that is."""

NAMES = {
    "idx + 1": "turn",
    "turn_number": "turn",
    "actual_turn": "turn",
    "completed_steps": "completed",
    "history_length": "shown",
    "FORMAT_PROMPT": "format",
    "format_prompt": "format",
    "LENGTH_PROMPT": "length",
    "length_prompt": "length",
    "warning": "invalid",
    "self.action_sep": "action_sep",
}
"""Expressions, and the slots that they are."""


class UnknownExpressionError(ValueError):
    """A string expression asks for something that is no slot."""

    def __init__(self, node: ast.AST) -> None:
        super().__init__(f"line {getattr(node, 'lineno', '?')}: {ast.unparse(node)}")


def text_of(node: ast.expr, known: Mapping[str, str] | None = None) -> str:
    """The text of a string expression.

    Args:
        node: Literals, f-strings, sums of these, and what is a slot.
        known: Names whose text is known already.

    Raises:
        UnknownExpressionError: It is made of something else.
    """
    slot = slot_of(node)
    if slot is not None:
        return f"{{{slot}}}"
    match node:
        case ast.Constant(value=str(text)):
            return escaped(text)
        case ast.JoinedStr(values=values):
            return "".join(text_of(value, known) for value in values)
        case ast.FormattedValue(value=value, conversion=-1, format_spec=form):
            return _formatted(text_of(value, known), form)
        case ast.BinOp(left=left, op=ast.Add(), right=right):
            return text_of(left, known) + text_of(right, known)
        case ast.Name(id=name) if known and name in known:
            return known[name]
    raise UnknownExpressionError(node)


def _formatted(text: str, form: ast.expr | None) -> str:
    match form:
        case None:
            return text
        case ast.JoinedStr(values=[ast.Constant(value=str(spec))]) if text.endswith("}"):
            return f"{text[:-1]}:{spec}}}"
    raise UnknownExpressionError(form)


def slot_of(node: ast.expr) -> str | None:
    """The slot that an expression is; None if it is none."""
    match node:
        case ast.Subscript(slice=ast.Constant(value=str(key))):
            return KEYS.get(key)
        case ast.Call(func=ast.Attribute(attr="get"), args=[ast.Constant(value=str(key)), *_]):
            return KEYS.get(key)
    return NAMES.get(ast.unparse(node))


def slots_in(text: str) -> set[str]:
    """The slots of a text."""
    return {name for _, name, _, _ in Formatter().parse(text) if name is not None}


def try_text(node: ast.expr | None) -> str | None:
    """The text of an expression; None if it is no text with slots."""
    try:
        return None if node is None else text_of(node)
    except UnknownExpressionError:
        return None


def assigned(tree: ast.AST, name: str) -> Iterator[ast.expr]:
    """What is assigned to a name, or added to it, in the order of the source."""
    found = [node for node in ast.walk(tree) if isinstance(node, ast.Assign | ast.AugAssign)]
    for node in sorted(found, key=lambda each: each.lineno):
        targets = node.targets if isinstance(node, ast.Assign) else [node.target]
        if [ast.unparse(target) for target in targets] == [name]:
            yield node.value


def contents(tree: ast.AST, role: str) -> Iterator[ast.expr]:
    """The ``content`` of every message of a role that is written out as a dict."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Dict):
            items = {ast.literal_eval(key): value for key, value in zip(node.keys, node.values, strict=True) if key}
            match items:
                case {"role": ast.Constant(value=str(found)), "content": content} if found == role:
                    yield content


def function(tree: ast.AST, name: str) -> ast.FunctionDef | None:
    """The function of a name, wherever it is defined."""
    return next((node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef) and node.name == name), None)
