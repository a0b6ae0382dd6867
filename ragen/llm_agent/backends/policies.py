"""Policies of the games of the demonstrations: they read a prompt and, like a model, decide from the text alone.

:func:`read_prompt` finds the state, the meaning of its symbols, the available actions and how many are left. Its
patterns match our own templates in :mod:`ragen.llm_agent.prompts.templates`; in a chat of another format the whole last
message is the state.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from random import Random
from typing import Any

from ragen.tools.examples import named_in

_STATE = re.compile(r"Turn \d+:\nState:\n(.*?)\n(?:You have (\d+) actions left\. )?Always output: ", re.S)
_FIRST_TURN = re.compile(r"(?:^|\n)(?:---\n)?Turn \d+:\nState:\n")
_SYMBOLS = re.compile(r"^Symbols in the state: (.+)$", re.M)
_SYMBOL = re.compile(r"(?:^|, )(\S) is (.*?)(?=, \S is |$)")
_ACTIONS = re.compile(r"^Available actions: (.+?)\. To take several in a row", re.M)


@dataclass(frozen=True)
class Prompt:
    """The content of a chat.

    Attributes:
        state: The newest state.
        instructions: The text before the first state.
        symbols: Grid symbol to meaning, if the chat explains them.
        actions: The names of the allowed actions, if the chat lists them; else those of its examples of an answer.
        limit: Maximum number of actions of the answer.
        chat: The messages to the player that the chat still contains.
    """

    state: str
    instructions: str = ""
    symbols: Mapping[str, str] = field(default_factory=dict)
    actions: tuple[str, ...] = ()
    limit: int = 1
    chat: str = ""


def read_prompt(messages: Sequence[Mapping[str, Any]], max_actions: int) -> Prompt:
    """Read a chat.

    Args:
        messages: The chat in OpenAI form; the newest state is the last one of its last message.
        max_actions: Maximum number of actions of a reply, whatever number the chat says is left.
    """
    last = text_of(messages[-1])
    chat = "\n".join(text_of(message) for message in messages if message["role"] != "assistant")
    state, left = _newest(last)
    named, instructions = _ACTIONS.search(chat), _FIRST_TURN.split(chat, maxsplit=1)[0]
    return Prompt(
        state=state,
        instructions=instructions,
        symbols=read_symbols(chat),
        actions=tuple(filter(None, map(str.strip, named[1].split(",")))) if named else named_in(instructions),
        limit=max(1, min(max_actions, int(left) if left else max_actions)),
        chat=chat,
    )


def _newest(text: str) -> tuple[str, str]:
    """The newest state of a message and its number of actions left; the whole text of a message in another format."""
    *_, (state, left) = [("", ""), *_STATE.findall(text.rsplit("\n---\n", 1)[-1])]
    return state or text, left


def read_symbols(text: str) -> dict[str, str]:
    """Grid symbol to meaning, for the symbols that the text explains."""
    found = _SYMBOLS.search(text)
    return dict(_SYMBOL.findall(found[1])) if found else {}


def text_of(message: Mapping[str, Any]) -> str:
    """A message's text, also if its content is a list of parts."""
    content = message["content"]
    if isinstance(content, str):
        return content
    return "".join(part.get("text", "") for part in content)


_ARMS = re.compile(r"named (.+?) and (.+?)\n")
_PUZZLE = re.compile(r"Target: (-?\d+), nums: \[([\d, ]+)\]")
_MOVES_ON_SLIPPERY_ICE = 2  # after a slip the rest of a longer plan would start from the wrong cell


@dataclass(frozen=True)
class Plan:
    """The decision of a policy.

    Attributes:
        thought: The reasoning, as a model would write it.
        actions: The actions to write, in order.
    """

    thought: str
    actions: tuple[str, ...]


def decide(env_type: str, prompt: Prompt, rng: Random, thoughtful: bool) -> Plan:
    """The next answer.

    Args:
        env_type: The environment type; those not in ``POLICIES`` get actions, or examples, that the prompt names.
        prompt: The prompt, read.
        rng: The generator; the same for the same prompt.
        thoughtful: Whether to solve the game, and not to guess.
    """
    plan = POLICIES[env_type](prompt, rng, thoughtful) if env_type in POLICIES else None
    if plan is not None:
        return plan
    actions = prompt.actions or ("go on",)
    count = rng.randint(1, prompt.limit)
    return Plan("I try something.", tuple(rng.choice(actions) for _ in range(count)))


def _bandit(prompt: Prompt, rng: Random, thoughtful: bool) -> Plan | None:
    """The arm whose name promises more."""
    from ragen.env.bandit.config import NAME_PAIRS

    if (found := _ARMS.search(prompt.state)) is None:
        return None
    arms = found.groups()
    if not thoughtful:
        return Plan("Either will do.", (rng.choice(arms),))
    pairs = [("Phoenix", "Dragon"), ("Trader", "Librarian"), *(pair for named in NAME_PAIRS.values() for pair in named)]
    better = next((pair[1] for pair in pairs if {*map(str.lower, pair)} == {*map(str.lower, arms)}), arms[0])
    arm = next(arm for arm in arms if arm.lower() == better.lower())
    return Plan(f"{arm} sounds like the one that pays off.", (arm,))


def _countdown(prompt: Prompt, rng: Random, thoughtful: bool) -> Plan | None:
    """An expression with the target's value."""
    from ragen.env.countdown.solver import solve

    if (found := _PUZZLE.search(prompt.state)) is None:
        return None
    target, numbers = int(found[1]), [int(number) for number in found[2].split(",")]
    if thoughtful and (expression := solve(numbers, target)) is not None:
        return Plan(f"{expression} is {target}.", (expression,))
    rng.shuffle(numbers)
    expression = str(numbers[0]) + "".join(f" {rng.choice('+-*')} {number}" for number in numbers[1:])
    return Plan("This may come close.", (expression,))


def _sokoban(prompt: Prompt, rng: Random, thoughtful: bool) -> Plan | None:
    """The fewest moves that push the boxes home."""
    from ragen.env.sokoban.config import SokobanEnvConfig
    from ragen.env.sokoban.level import TILE_NAMES
    from ragen.env.sokoban.solver import solve

    if not thoughtful:
        return None
    symbols = tile_symbols(prompt.symbols, TILE_NAMES)
    return _walk(solve(prompt.state, symbols, SokobanEnvConfig().action_lookup), prompt.limit)


def _frozen_lake(prompt: Prompt, rng: Random, thoughtful: bool) -> Plan | None:
    """Moves that avoid the holes, at a distance if the instructions say that the ice is slippery."""
    from ragen.env.frozen_lake.config import SHOWN_TILES, FrozenLakeEnvConfig
    from ragen.env.frozen_lake.solver import solve

    if not thoughtful:
        return None
    slippery = "slippery" in prompt.instructions
    symbols, moves = tile_symbols(prompt.symbols, SHOWN_TILES), FrozenLakeEnvConfig().action_lookup
    way = solve(prompt.state, symbols, moves, slippery)
    return _walk(way, min(prompt.limit, _MOVES_ON_SLIPPERY_ICE) if slippery else prompt.limit)


def _search(prompt: Prompt, rng: Random, thoughtful: bool) -> Plan | None:
    """The next name to look up, or the answer, of a generated question."""
    from ragen.env.search.world import solve

    action = solve(prompt.chat or prompt.state) if thoughtful else None
    if action is None:
        return None
    is_ragens = "finish[<answer>]" in prompt.state
    return Plan("The question leads me there.", (action.replace("answer[", "finish[", 1) if is_ragens else action,))


def _walk(way: Sequence[str] | None, limit: int) -> Plan | None:
    return Plan(f"{len(way)} moves lead there, first {way[0]}.", tuple(way[:limit])) if way else None


def tile_symbols(symbols: Mapping[str, str], tiles: Sequence[str]) -> dict[int, str] | None:
    """The symbol of each tile, by its index among the meanings; None if the prompt does not explain all of them."""
    by_meaning = {meaning: symbol for symbol, meaning in symbols.items()}
    if any(tile not in by_meaning for tile in tiles):
        return None
    return {number: by_meaning[tile] for number, tile in enumerate(tiles)}


POLICIES: dict[str, Callable[[Prompt, Random, bool], Plan | None]] = {
    "bandit": _bandit,
    "countdown": _countdown,
    "frozen_lake": _frozen_lake,
    "search": _search,
    "sokoban": _sokoban,
}
"""Environment type to policy, which returns None for a state that it cannot read, or leaves to chance."""
