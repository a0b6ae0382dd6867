"""An environment whose answers JSON does not know."""

import time

from ragen.env.base import BaseLanguageBasedEnv


class Odd(BaseLanguageBasedEnv):
    """Answers as the action asks."""

    uses_global_rng = False

    def __init__(self, config=None):
        self.shown = ""

    def reset(self, seed=None, mode=None):
        self.shown = f"seed {seed}"
        return self.shown

    def step(self, action):
        if action.startswith("hang "):
            open(action[5:], "w").close()
            time.sleep(10**6)
        if action == "raises":
            raise ValueError("half a character: \ud800")
        self.shown = "half a character: \ud800" if action == "half" else action
        nested = []
        for _ in range(200):
            nested = [nested]
        infos = {
            "info": {"a": float("nan"), 1: "\ud800", "\ud800": float("-inf")},
            "deep": {"deep": nested},
            "object": {"it": object(), "type": int, "set": {2, 1}},
        }
        return self.shown, {"nan": float("nan"), "inf": float("inf")}.get(action, 1.0), False, infos.get(action, {})

    def render(self, mode=None):
        return self.shown
