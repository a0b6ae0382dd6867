"""MiniWoB++: actions and, where there is a Chromium, equal episodes that leave nothing behind."""

from __future__ import annotations

import json

import psutil
import pytest

from ragen.env.miniwob import browser
from ragen.env.miniwob.config import MiniWobEnvConfig
from ragen.env.miniwob.env import MiniWobEnv, read_action
from ragen.errors import SandboxError, StateError
from support import env_contract

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
    left = [each for each in psutil.Process().children(recursive=True) if "chrom" in each.name()]
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
