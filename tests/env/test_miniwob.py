"""MiniWoB++: actions and, where there is a Chromium, equal episodes that leave nothing behind."""

from __future__ import annotations

import json
from contextlib import suppress
from typing import Any

import psutil
import pytest

from ragen.env.miniwob import browser
from ragen.env.miniwob.config import MiniWobEnvConfig
from ragen.env.miniwob.env import MiniWobEnv, read_action
from ragen.errors import SandboxError, StateError
from ragen.llm_agent.es_manager import EnvStateManager
from support import env_contract
from support.episodes import config, kill_workers, play_answers

needs_browser = pytest.mark.skipif(bool(browser.missing()), reason="; ".join(browser.missing()) or "there is one")


@pytest.mark.parametrize(
    ("action", "read"),
    [
        ("click[3]", ("click", 3, "")),
        (" type [ 12 |a | b] ", ("type", 12, "a | b")),
        ("type[1|]", ("type", 1, "")),
        ("select[4|Red]", ("select", 4, "Red")),
        ("scroll[2]", ("scroll", 2, "down")),
        ("scroll[2|up]", ("scroll", 2, "up")),
        ("scroll[2|left]", None),
        ("click[2|x]", None),
        ("type[2]", None),
        ("select[2|]", None),
        (f"type[2|{'x' * 301}]", None),
        ("click[99999]", None),
        ("Click the button", None),
        ("", None),
    ],
)
def test_actions_are_read(action: str, read: tuple[str, int, str] | None) -> None:
    assert read_action(action) == read


# In a browser


def chromiums() -> set[psutil.Process]:
    """The browsers of this process and its workers."""
    return set(filter(is_browser, psutil.Process().children(recursive=True)))


def is_browser(process: psutil.Process) -> bool:
    """Whether a process, which may have ended meanwhile, is one of a browser's."""
    with suppress(psutil.NoSuchProcess):
        return "chrom" in process.name()
    return False


@needs_browser
@pytest.mark.timeout(300)  # on a busy machine
def test_an_episode_follows_from_seed_and_actions_in_a_browser_without_network_or_rights() -> None:
    tasks = ["login-user", "use-autocomplete"]
    actions = ["type[2|ab]", "scroll[1]", "nonsense", "click[3]", "click[1]"]

    def made() -> MiniWobEnv:
        return MiniWobEnv(MiniWobEnvConfig(tasks=tasks))

    first, second = made(), made()
    with pytest.raises(StateError):
        first.step("click[1]")
    try:
        shown = first.reset(0)
    except SandboxError as error:  # such as where users may not have namespaces
        pytest.skip(str(error))
    expected = env_contract.play(first, actions)
    second.reset(1)
    assert second.reset(0) == shown and env_contract.play(second, actions) == expected
    assert [json.loads(turn)[3]["action_is_valid"] for turn in expected[:3]] == [True, False, False]
    left = chromiums()
    running = [each.cmdline() for each in left]
    assert running and not any("--no-sandbox" in line for line in running)
    asked = 'fetch("https://example.com").then(() => "reached", () => "not reached")'
    page = first._page
    assert page is not None and first._lease is not None
    assert first._lease.value.call(page._page.evaluate, asked) == "not reached"
    for env in (first, second):
        env.close()
    _, still = psutil.wait_procs(left, timeout=60)
    assert not still


@needs_browser
@pytest.mark.slow
@pytest.mark.timeout(600)  # on a busy machine
def test_rollouts_are_equal_in_workers_and_after_kills_and_nothing_is_left() -> None:
    tasks = ["login-user", "click-test", "choose-list", "click-checkboxes"]
    tags = {"Web": {"env_type": "miniwob", "env_config": {"tasks": tasks}}}

    def answers(cache: dict[str, Any], turn: int) -> list[str]:
        return ["click[1]"] if (cache["env_id"] + turn) % 4 else ["scroll[1]", "type[2|x]"]

    def made(mode: Any) -> EnvStateManager:
        return EnvStateManager(config(tags, [("Web", 4)], use_multiprocessing=mode))

    with made(False) as manager:
        expected = [play_answers(manager, answers, 4) for _ in range(2)]
    with made(True) as manager:
        assert play_answers(manager, answers, 4) == expected[0]
        assert play_answers(manager, answers, 4, lambda turn: turn == 2 and kill_workers(manager)) == expected[1]
        left = chromiums()
    _, still = psutil.wait_procs(left, timeout=60)
    assert not still
    rewards = [turn.get("reward", 0) for cache in expected[0] + expected[1] for turn in cache["history"]]
    assert max(rewards) == 1.0, "something was solved"
