"""The shop in a terminal: pages as lines, actions with numbers."""

from __future__ import annotations

from typing import TextIO

from ragen.env.webshop.env import WebShopEnv

_QUIT = ("quit", "q", "exit")


def play(env: WebShopEnv, seed: int, mode: str, lines: TextIO, out: TextIO) -> float | None:
    """Let a person shop until a purchase, ``quit``, or the end of the input.

    Args:
        env: The environment; it is reset here.
        seed: Selects the goal.
        mode: Selects the split.
        lines: The input, one action per line: an action, its number, or words to search for.
        out: The output for pages.

    Returns:
        The score of the purchase; None without one.
    """
    env.reset(seed, mode)
    while True:
        actions = env.get_available_actions()
        show(env, actions, out)
        print("> ", end="", file=out, flush=True)
        line = lines.readline()
        if not line or line.strip().lower() in _QUIT:
            return None
        _, reward, done, info = env.step(read_action(line, actions))
        if not info["action_is_valid"]:
            print("(This page has no such action.)", file=out)
        if done:
            print(f"\n{_page(env)}", file=out)
            return info.get("raw_reward", reward)


def read_action(line: str, actions: list[str]) -> str:
    """The action of a line: the action with that number, a search for the words, or the line itself."""
    text = line.strip()
    if text.isdecimal() and 0 < int(text) <= len(actions):
        text = actions[int(text) - 1]
    if "[" not in text and actions[:1] == ["search[<content>]"]:
        return f"search[{text}]"
    return text if "[" in text else f"click[{text}]"


def show(env: WebShopEnv, actions: list[str], out: TextIO) -> None:
    """Print the page and its actions."""
    print(f"\n{_page(env)}\n", file=out)
    for number, action in enumerate(actions, 1):
        print(f"  {number:3} {action}", file=out)
    if env.chosen:
        print(f"Chosen: {', '.join(f'{name}: {value}' for name, value in env.chosen.items())}", file=out)


def _page(env: WebShopEnv) -> str:
    return env.observation.replace(" [SEP] ", "\n")
