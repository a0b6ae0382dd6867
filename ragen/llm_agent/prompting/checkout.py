r"""The prompts of a RAGEN checkout, from ``ctx_manager.py``, the files of ``memory/``, and ``envs.yaml``.

The source is parsed as data and never executed. Both generations are supported (2025, with the instruction in the first
user message, and 2026, with it in the system message), also with changed wording. A checkout whose prompts are built in
another way is refused, and the message names the line.

Expressions become texts with slots: ``f"Turn {idx + 1}:\n"`` is ``Turn {turn}:\n``. Expressions in
braces are recognized by their key, such as in ``['state']``, or by their name in RAGEN; see :data:`KEYS` and
:data:`NAMES`.
"""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from string import Formatter
from typing import Any

from ragen.errors import ConfigError
from ragen.llm_agent.prompting.templates import (
    IN_SYSTEM,
    IN_USER,
    InstructionTemplate,
    PromptTemplate,
    ReplyFormatTemplate,
    WindowTemplate,
    escaped,
    from_yaml,
)

CONTEXT = "ragen/llm_agent/ctx_manager.py"
MEMORY = "ragen/llm_agent/memory/simple_memory.py"
MEMORIES = "ragen/llm_agent/memory/factory.py"
ADVENTURE_MEMORY = "ragen/llm_agent/memory/alfworld_memory.py"
TAGS = "config/envs.yaml"

KEYS = {
    "state": "observation",
    "actions_left": "actions_left",
    "reward": "reward",
    "llm_response": "reply",
    "max_tokens": "max_tokens",
    "max_actions_per_traj": "max_actions",
}
"""The keys of subscripts and of ``.get``, and their slots."""

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
"""Expressions and their slots."""

ADVENTURE_NAMES = {
    "task": "{task}",
    "total_steps": "{completed}",
    "history_count": "{shown}",
    "clean_obs": "{observation}",
    "clean_current": "{observation}",
    "action": "{reply}",
    "current_turn": "{turn}",
    "admissible": "{admissible}",
}
"""Variables of ``AlfWorldMemory`` and their slots."""

ADVENTURE_PARTS = ("task", "played", "before", "turn", "seen", "admissible", "invalid", "asked")
"""The parts of a message of ``AlfWorldMemory``, in this order."""


def read_prompts(checkout: str | Path) -> PromptTemplate:
    """The prompts of a checkout.

    Args:
        checkout: The folder with ``ragen/`` and ``config/``.

    Raises:
        ConfigError: It is not a RAGEN checkout, or its prompts are built in an unknown way.
    """
    root = Path(checkout).expanduser()
    path = root / CONTEXT
    if not path.is_file():
        raise ConfigError(f"{root} is not a RAGEN checkout: it has no {CONTEXT}.")
    source = _Source(path)
    state = source.only("the state of a turn", source.turn_texts({"observation"}))
    head = source.only("the head of a turn", source.turn_texts({"turn"}, only=True))
    system, place = source.system()
    template = PromptTemplate(
        system=system,
        instruction_in=place,
        join="",
        trim=False,
        first_turn=head + "{state}",
        later_turn=head + "{state}",
        state=state,
        reward=source.only("the reward of a turn", source.rewards()),
        actions_left="{actions_left}",
        length=source.only("LENGTH_PROMPT", source.texts("LENGTH_PROMPT")),
        invalid=source.only("warning", [text for text in source.texts("warning") if text], missing=""),
        reply_format=source.reply_format(),
        instruction=source.instruction(),
        instructions=_instructions(root / TAGS),
    )
    memory = root / MEMORY
    if memory.is_file():
        return replace(template, window=_Source(memory).window(state), windows=_windows(root))
    ours = template.window  # RAGEN of 2025 has no such prompts, and ours are put together with blank lines
    texts = {name: getattr(ours, name) + "\n\n" for name in ("before", "turn", "after")}
    return replace(template, window=replace(ours, **texts))


class _Source:
    """A file of the checkout, parsed."""

    def __init__(self, path: Path) -> None:
        self._path = path
        try:
            tree = ast.parse(path.read_bytes(), str(path))  # in the encoding that it declares
        except (OSError, UnicodeDecodeError, SyntaxError, ValueError) as error:
            raise ConfigError(f"{path} cannot be read as Python: {error}.") from error
        managers = [node for node in tree.body if isinstance(node, ast.ClassDef) and node.name == "ContextManager"]
        self._tree: ast.AST = managers[0] if managers else tree  # the file may hold tests of it besides

    def refuse(self, what: str, found: Iterable[Any] = ()) -> ConfigError:
        """An error that names the unknown part."""
        texts = [str(each) for each in found]
        seen = f"found {len(texts)} of it: {texts}" if texts else "found none"
        return ConfigError(
            f"{self._path}: looked for {what} and {seen}; this checkout builds its prompts in an unknown way. "
            "Start from `python -m ragen.llm_agent.prompting show`, and copy its texts by hand."
        )

    def only(self, what: str, found: Iterable[str], missing: str | None = None) -> str:
        """The only distinct text."""
        texts = list(dict.fromkeys(found))
        if not texts and missing is not None:
            return missing
        if len(texts) != 1:
            raise self.refuse(what, texts)
        return texts[0]

    def text(self, what: str, node: ast.expr, known: Mapping[str, str] | None = None) -> str:
        """The text of an expression.

        Raises:
            ConfigError: It is not a text.
        """
        try:
            return _text_of(node, known)
        except _UnknownExpressionError as error:
            raise self.refuse(what, [error]) from error

    def texts(self, name: str) -> list[str]:
        """The texts assigned to a variable."""
        return [text for node in _assigned(self._tree, name) if (text := _try_text(node)) is not None]

    def turn_texts(self, slots: set[str], only: bool = False) -> list[str]:
        """The texts of a multi-turn chat with these slots, optionally with no others."""
        names = ("messages[-1]['content']", "content")
        texts = [text for name in names for text in self.texts(name)]
        return [text for text in texts if (_slots_in(text) == slots if only else _slots_in(text) >= slots)]

    def rewards(self) -> list[str]:
        """The user messages with a reward."""
        texts = [_try_text(node) for node in _contents(self._tree, "user")]
        return [text for text in texts if text and _slots_in(text) == {"reward"}]

    def system(self) -> tuple[str, str]:
        """The system message without the instruction, and the place of the instruction."""
        plain = [text for node in _contents(self._tree, "system") if (text := _try_text(node)) is not None]
        if plain:
            return self.only("the system message", plain), IN_USER
        builder = _function(self._tree, "_build_system_content")
        if builder is None:
            raise self.refuse("the system message")
        returned = [node.value for node in ast.walk(builder) if isinstance(node, ast.Return) and node.value is not None]
        texts = [self.text("the system message", node, {"env_instruction": ""}) for node in returned]
        return self.only("the system message", texts), IN_SYSTEM

    def reply_format(self) -> ReplyFormatTemplate:
        """The two forms of an answer."""
        found = {ast.dump(node): node for node in _assigned(self._tree, "FORMAT_PROMPT")}
        match list(found.values()):
            case [ast.IfExp(body=ast.Constant(value=str(think)), orelse=ast.Constant(value=str(answer)))]:
                return ReplyFormatTemplate(think=think, answer=answer)
        raise self.refuse("FORMAT_PROMPT", map(ast.unparse, found.values()))

    def instruction(self) -> InstructionTemplate:
        """The text after a tag's own instruction."""
        symbols, symbol, symbol_join = self._listed("grid_vocab_str", {"k": "{symbol}", "v": "{meaning}"})
        actions, action, action_join = self._listed("action_lookup_str", {"v": "{name}"})
        if action != "{name}":
            raise self.refuse("the names of actions", [action])
        more = "".join(
            self.text("action_lookup_str", node) for node in [*_assigned(self._tree, "action_lookup_str")][1:]
        )
        return InstructionTemplate(
            join="",
            symbols=symbols + "{symbols}",
            symbol=symbol,
            symbol_join=symbol_join,
            coordinates=self.only("coord_hint", self.texts("coord_hint"), missing=""),
            actions=f"{actions}{{actions}}{more}",
            action_join=action_join,
            limits="",
        )

    def _listed(self, name: str, known: Mapping[str, str]) -> tuple[str, str, str]:
        """A list: its prefix, an item, and the separator."""
        node = next(_assigned(self._tree, name), None)
        match node:
            case ast.BinOp(
                left=before,
                op=ast.Add(),
                right=ast.Call(
                    func=ast.Attribute(value=ast.Constant(value=str(between)), attr="join"),
                    args=[ast.ListComp(elt=one) | ast.GeneratorExp(elt=one)],
                ),
            ):
                return self.text(name, before), self.text(name, one, known), between
        raise self.refuse(name, [] if node is None else [ast.unparse(node)])

    def window(self, state: str) -> WindowTemplate:
        """The texts for earlier turns in one message; the current turn must show its state as usual."""
        builder = _function(self._tree, "build_user_content")
        if builder is None:
            raise self.refuse("build_user_content")
        branch = next((node for node in builder.body if isinstance(node, ast.If)), None)
        loop = next((node for node in branch.body if isinstance(node, ast.For)), None) if branch else None
        if branch is None or loop is None:
            raise self.refuse("the loop over earlier turns in build_user_content")
        reward = next((node for node in loop.body if isinstance(node, ast.If)), None)
        place = branch.body.index(loop)
        asked, alone = (self._current(builder, state, with_others) for with_others in (True, False))
        return WindowTemplate(
            before=self._added(branch.body[:place]),
            turn=self._added(loop.body),
            reward=self._added(reward.body) if reward else "",
            after=self._added(branch.body[place + 1 :]),
            asked=asked,
            alone=alone,
        )

    def _added(self, body: list[ast.stmt]) -> str:
        """The additions of some statements to the content; a conditional one is for the reward."""
        texts = []
        for node in body:
            if isinstance(node, ast.AugAssign):
                texts.append(self.text("the text of an earlier turn", node.value))
            elif isinstance(node, ast.If):
                texts.append("{reward}")
        return "".join(texts)

    def _current(self, builder: ast.FunctionDef, state: str, with_others: bool) -> str:
        """The current turn, with or without earlier turns."""
        known: dict[str, str] = {}
        for node in builder.body:
            match node:
                case ast.Assign(targets=[ast.Name(id=name)], value=ast.IfExp(body=body, orelse=orelse)):
                    known[name] = self.text(name, body if with_others else orelse)
        added = [node.value for node in builder.body if isinstance(node, ast.AugAssign)]
        text = "".join(self.text("the turn that is asked for", node, known) for node in added)
        if not text.endswith(state):
            raise self.refuse(f"the state as {CONTEXT} shows it", [text])
        return text.removesuffix(state) + "{state}"

    def memories(self) -> dict[str, str]:
        """The class for earlier turns of each environment type that has its own."""
        match list(_assigned(self._tree, "MEMORY_REGISTRY")):
            case [ast.Dict(keys=keys, values=values)]:
                return {self._plain_text(key): ast.unparse(value) for key, value in zip(keys, values, strict=True)}
        raise self.refuse("MEMORY_REGISTRY")

    def _plain_text(self, node: ast.AST | None) -> str:
        match node:
            case ast.Constant(value=str(text)):
                return text
        raise self.refuse("a text", [] if node is None else [ast.unparse(node)])

    def adventure_window(self) -> WindowTemplate:
        """The texts of ``AlfWorldMemory``, which are lines of one message, and what it removes from observations."""
        builder = self._own("build_user_content")
        returned = [node.value for node in ast.walk(builder) if isinstance(node, ast.Return)]
        match returned:
            case [ast.Call(func=ast.Attribute(value=ast.Constant(value=str(join)), attr="join"), args=[lines])]:
                found = list(self._appended(builder.body, ast.unparse(lines)))
            case _:
                raise self.refuse("the lines that build_user_content joins")
        if tuple(part for part, _ in found) != ADVENTURE_PARTS:
            raise self.refuse(f"the lines {', '.join(ADVENTURE_PARTS)}", found)
        texts = {part: text if part == "asked" else text + join for part, text in found}
        longest, cut = self._cut(builder)
        return WindowTemplate(
            before="{task}{played}" + texts["before"],
            turn=texts["turn"],
            reward="",
            after="",
            asked="{state}",
            alone="{task}{played}{state}",
            state=f"{texts['seen']}{{admissible}}{{invalid}}{texts['asked']}",
            invalid=texts["invalid"],
            task=texts["task"],
            played=texts["played"],
            admissible=texts["admissible"],
            find_task=self._sought("_extract_task"),
            find_admissible=self._sought("_extract_admissible_actions"),
            find_reply=self._sought("_extract_action_from_response"),
            clean=self._cleaning(),
            longest=longest,
            cut=cut,
        )

    def _own(self, name: str) -> ast.FunctionDef:
        found = _function(self._tree, name)
        if found is None:
            raise self.refuse(name)
        return found

    def _appended(self, body: list[ast.stmt], lines: str, within: str = "") -> Iterator[tuple[str, str]]:
        """The lines that statements append, each with its part of the message."""
        for node in body:
            match node:
                case ast.For(body=inner):
                    yield from self._appended(inner, lines, "for")
                case ast.If(body=inner):
                    yield from self._appended(inner, lines, within or "if")
                case ast.Expr(value=ast.Call(func=ast.Attribute(value=ast.Name(id=name), attr="append"), args=[text])):
                    if name == lines:
                        line = self.text("a line of a message", text, ADVENTURE_NAMES)
                        yield _adventure_part(line, within), line

    def _cut(self, builder: ast.FunctionDef) -> tuple[int, str]:
        """The maximum length of an earlier observation, and the end of a shortened one."""
        for node in ast.walk(builder):
            match node:
                case ast.If(
                    test=ast.Compare(left=ast.Call(func=ast.Name(id="len")), comparators=[ast.Constant(value=longest)]),
                    body=[
                        ast.Assign(
                            value=ast.BinOp(
                                left=ast.Subscript(slice=ast.Slice(upper=ast.Constant(value=kept))),
                                right=ast.Constant(value=str(cut)),
                            )
                        )
                    ],
                ) if isinstance(longest, int) and isinstance(kept, int) and kept + len(cut) == longest:
                    return longest, cut
        raise self.refuse("how long an earlier observation may be")

    def _sought(self, name: str) -> str:
        """The pattern that a function searches for."""
        found = [self._pattern(call, 2) for call in _calls(self._own(name), "re.search")]
        return self.only(f"the pattern of {name}", found)

    def _cleaning(self) -> dict[str, str]:
        """The patterns that are removed from observations, in order."""
        builder = self._own("_clean_observation")
        clean: dict[str, str] = {}
        for call in _calls(builder, "re.sub"):
            put = self._plain_text(call.args[1])
            if isinstance(call.args[0], ast.Name):
                lists = _assigned(self._tree, "CLEAN_PATTERNS")
                clean |= {self._pattern(call, 3, each): put for node in lists for each in getattr(node, "elts", ())}
            else:
                clean[self._pattern(call, 3)] = put
        if any(isinstance(node, ast.Attribute) and node.attr == "strip" for node in ast.walk(builder)):
            clean[r"\A\s+|\s+\Z"] = ""
        return clean

    def _pattern(self, call: ast.Call, place: int, pattern: ast.expr | None = None) -> str:
        """The pattern of a call of ``re``, with its flags, which are at this position or named."""
        given = [*call.args[place:], *(word.value for word in call.keywords if word.arg == "flags")]
        flags = {name for node in given for name in ast.unparse(node).split(" | ")}
        letters = {"re.MULTILINE": "m", "re.DOTALL": "s", "re.IGNORECASE": "i", "re.M": "m", "re.S": "s", "re.I": "i"}
        if not flags <= letters.keys():
            raise self.refuse("the flags of a pattern", sorted(flags))
        text = self._plain_text(call.args[0] if pattern is None else pattern)
        return (f"(?{''.join(sorted({letters[flag] for flag in flags}))})" if flags else "") + text


def _adventure_part(text: str, within: str) -> str:
    """The part of the message of a line of ``AlfWorldMemory``."""
    slots = _slots_in(text)
    if within == "for":
        return "turn"
    by_slot = {"format": "asked", "shown": "before", "observation": "seen", "completed": "played"}
    by_slot |= {"task": "task", "admissible": "admissible"}
    return next((part for slot, part in by_slot.items() if slot in slots), "invalid" if within and not slots else text)


def _windows(root: Path) -> dict[str, WindowTemplate]:
    """The windows of environment types with their own memory."""
    factory = root / MEMORIES
    if not factory.is_file():
        return {}
    source, windows = _Source(factory), {}
    for env_type, memory in source.memories().items():
        if memory == "AlfWorldMemory":
            windows[env_type] = _Source(root / ADVENTURE_MEMORY).adventure_window()
        elif memory != "SimpleMemory":
            raise source.refuse("SimpleMemory or AlfWorldMemory", [f"{env_type}: {memory}"])
    return windows


def _instructions(path: Path) -> dict[str, str]:
    """The instruction of each tag of the checkout; empty without the file."""
    import yaml

    if not path.is_file():
        return {}
    try:
        content = from_yaml(path.read_text("utf-8"))
        entries = content["custom_envs"].items()
        return {str(tag): entry["env_instruction"] for tag, entry in entries if entry.get("env_instruction")}
    except (OSError, UnicodeDecodeError, yaml.YAMLError, KeyError, TypeError, AttributeError) as error:
        raise ConfigError(f"{path} has no custom_envs that can be read: {error!r}.") from error


class _UnknownExpressionError(ValueError):
    """A string expression has an unknown slot."""

    def __init__(self, node: ast.AST) -> None:
        super().__init__(f"line {getattr(node, 'lineno', '?')}: {ast.unparse(node)}")


def _text_of(node: ast.expr, known: Mapping[str, str] | None = None) -> str:
    """The text of literals, f-strings, sums, slots and known names only."""
    slot = _slot_of(node)
    if slot is not None:
        return f"{{{slot}}}"
    match node:
        case ast.Constant(value=str(text)):
            return escaped(text)
        case ast.JoinedStr(values=values):
            return "".join(_text_of(value, known) for value in values)
        case ast.FormattedValue(value=value, conversion=-1, format_spec=form):
            return _formatted(_text_of(value, known), form)
        case ast.BinOp(left=left, op=ast.Add(), right=right):
            return _text_of(left, known) + _text_of(right, known)
        case ast.Name(id=name) if known and name in known:
            return known[name]
    raise _UnknownExpressionError(node)


def _formatted(text: str, form: ast.expr | None) -> str:
    match form:
        case None:
            return text
        case ast.JoinedStr(values=[ast.Constant(value=str(spec))]) if text.endswith("}"):
            return f"{text[:-1]}:{spec}}}"
    raise _UnknownExpressionError(form)


def _slot_of(node: ast.expr) -> str | None:
    """The slot of an expression; None if it is not one."""
    match node:
        case ast.Subscript(slice=ast.Constant(value=str(key))):
            return KEYS.get(key)
        case ast.Call(func=ast.Attribute(attr="get"), args=[ast.Constant(value=str(key)), *_]):
            return KEYS.get(key)
    return NAMES.get(ast.unparse(node))


def _slots_in(text: str) -> set[str]:
    """The slots of a text."""
    return {name for _, name, _, _ in Formatter().parse(text) if name is not None}


def _try_text(node: ast.expr | None) -> str | None:
    """The text of an expression; None if it has none."""
    try:
        return None if node is None else _text_of(node)
    except _UnknownExpressionError:
        return None


def _assigned(tree: ast.AST, name: str) -> Iterator[ast.expr]:
    """The values assigned or added to a name, in source order."""
    found = [node for node in ast.walk(tree) if isinstance(node, ast.Assign | ast.AugAssign)]
    for node in sorted(found, key=lambda each: each.lineno):
        targets = node.targets if isinstance(node, ast.Assign) else [node.target]
        if [ast.unparse(target) for target in targets] == [name]:
            yield node.value


def _contents(tree: ast.AST, role: str) -> Iterator[ast.expr]:
    """The ``content`` of every message of a role that is a dict literal."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Dict):
            items = {ast.literal_eval(key): value for key, value in zip(node.keys, node.values, strict=True) if key}
            match items:
                case {"role": ast.Constant(value=str(found)), "content": content} if found == role:
                    yield content


def _calls(tree: ast.AST, name: str) -> list[ast.Call]:
    """The calls of a function, in source order."""
    found = [node for node in ast.walk(tree) if isinstance(node, ast.Call) and ast.unparse(node.func) == name]
    return sorted(found, key=lambda call: (call.lineno, call.col_offset))


def _function(tree: ast.AST, name: str) -> ast.FunctionDef | None:
    """The function of this name, at any level."""
    return next((node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef) and node.name == name), None)
