"""Environments of ``ragen serve`` in the frameworks that others train with: about ten lines for each.

Run it with ``python examples/serve_clients.py`` to start a server and play an episode through every framework that is
installed (``openenv``, ``trl``, ``skyrl-gym``, ``verifiers``), or with ``--url http://host:8000`` for a server that
runs. Each of them has to see the same episode.
"""

from __future__ import annotations

import argparse
import asyncio
import subprocess
import sys
import uuid
from collections.abc import Iterator
from contextlib import asynccontextmanager, contextmanager, nullcontext
from importlib.util import find_spec
from types import SimpleNamespace
from typing import Any

from ragen.env.openenv.config import OpenEnvEnvConfig
from ragen.env.openenv.env import OpenEnvEnv

CHOICES = ("env", "mode", "seed")  # what a reset takes of a row
MOVES = ["Right", "Down", "Down"]
SEED = 5


def session(url: str) -> Any:
    """OpenEnv's own client, in a session that it finds again after a cut."""
    from openenv import GenericEnvClient

    return GenericEnvClient(base_url=f"{url}/s/{uuid.uuid4()}").sync()


@contextmanager
def server(env: str) -> Iterator[str]:
    """``ragen serve`` with one type of environment, in a process of its own; its address."""
    command = [sys.executable, "-m", "ragen", "serve", "--env", env, "--port", "0"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            yield process.stdout.readline().split()[-1]
        finally:
            process.terminate()


def trl_environment(url: str) -> Any:
    """What ``GRPOTrainer(environment_factory=...)`` takes; a row of the data set may have a seed."""

    class Game:
        def __init__(self) -> None:
            self._env, self._reward = session(url), 0.0
            self._env.connect()

        def reset(self, **row: Any) -> str:
            self._reward = 0.0
            return str(self._env.reset(**{name: row[name] for name in CHOICES if name in row}).observation["text"])

        def act(self, action: str) -> str:
            """Play a turn.

            Args:
                action: What to do, such as Right.

            Returns:
                What is to be seen then.
            """
            result = self._env.step({"text": action})
            self._reward += result.reward
            return str(result.observation["text"])

        def get_reward(self) -> float:
            return self._reward

    return Game


def register_with_skyrl(url: str) -> None:
    """Make it known to SkyRL as ``lake``; a row's ``extras`` may have a seed."""
    import skyrl_gym
    from skyrl_gym.envs.base_text_env import BaseTextEnv, BaseTextEnvStepOutput

    class Lake(BaseTextEnv):
        def __init__(self, env_config: Any = None, extras: dict[str, Any] | None = None) -> None:
            super().__init__()
            self._env, self._seed = session(url), (extras or {}).get("seed")

        def init(self, prompt: list[dict[str, str]]) -> tuple[list[dict[str, str]], dict[str, Any]]:
            self._env.connect()
            seen = self._env.reset(seed=self._seed).observation["text"]
            return [*prompt, {"role": "user", "content": seen}], {}

        def step(self, action: str) -> BaseTextEnvStepOutput:
            result = self._env.step({"text": action})
            seen = [{"role": "user", "content": result.observation["text"]}]
            return BaseTextEnvStepOutput(
                observations=seen, reward=result.reward, done=result.done, metadata=result.metadata
            )

        def close(self) -> None:
            self._env.close()

    skyrl_gym.register(id="lake", entry_point=Lake)


# An episode through each of them, as the framework plays it


def through_ragen(url: str) -> list[str]:
    """As an environment of this package."""
    env = OpenEnvEnv(OpenEnvEnvConfig(url=url))
    try:
        return [env.reset(SEED), *(env.step(move)[0] for move in MOVES)]
    finally:
        env.close()


def through_openenv(url: str) -> list[str]:
    """With OpenEnv's client."""
    with session(url) as env:
        results = [env.reset(seed=SEED), *(env.step({"text": move}) for move in MOVES)]
        return [result.observation["text"] for result in results]


def through_trl(url: str) -> list[str]:
    """With a call of the tool, as the model of a GRPO trainer makes it; its schema comes from the docstring."""
    from transformers.utils import get_json_schema

    env = trl_environment(url)()
    assert get_json_schema(env.act)["function"]["parameters"]["required"] == ["action"]
    return [env.reset(seed=SEED, prompt="Play."), *(env.act(action=move) for move in MOVES)]


def through_skyrl(url: str) -> list[str]:
    """With SkyRL's registry."""
    import skyrl_gym

    register_with_skyrl(url)
    env = skyrl_gym.make("lake", env_config={}, extras={"seed": SEED})
    chat, _ = env.init([{"role": "user", "content": "Play."}])
    seen = [chat[-1]["content"], *(env.step(move)["observations"][0]["content"] for move in MOVES)]
    env.close()
    return seen


def through_verifiers(url: str) -> list[str]:
    """With the ``openenv`` taskset of verifiers; its player says these moves, where a model would."""
    import json

    from verifiers.v1.tasksets.openenv import OpenEnvConfig, OpenEnvEnv, OpenEnvTaskset

    (task,) = OpenEnvTaskset(OpenEnvConfig(base_url=url, resets=[{"seed": SEED}])).load()
    seen, said = [], iter([*MOVES, ""])

    async def turn(payload: str) -> SimpleNamespace:
        seen.append(json.loads(payload)["observation"]["text"])
        return SimpleNamespace(terminated=False, last_reply=next(said))

    @asynccontextmanager
    async def interaction(_: Any) -> Any:
        trace = SimpleNamespace(stop=lambda reason: None, record_reward=lambda name, value: None)
        yield SimpleNamespace(turn=turn, trace=trace)

    player = SimpleNamespace(interaction=interaction)
    asyncio.run(OpenEnvEnv.run(object.__new__(OpenEnvEnv), task, SimpleNamespace(player=player)))
    return seen


WAYS = {
    "ragen": (through_ragen, ("websockets",)),
    "openenv": (through_openenv, ("openenv",)),
    "trl": (through_trl, ("openenv", "trl", "transformers")),
    "skyrl-gym": (through_skyrl, ("openenv", "skyrl_gym")),
    "verifiers": (through_verifiers, ("openenv", "verifiers")),
}


def main(argv: list[str] | None = None) -> int:
    """Play through each framework; the exit code is 1 if an episode differs."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument(
        "frameworks", nargs="*", metavar="FRAMEWORK", help=f"of {', '.join(WAYS)}; all if none is named"
    )
    parser.add_argument("--url", help="a server of frozen_lake that runs; one is started if not given")
    given = parser.parse_args(argv)
    names = given.frameworks or list(WAYS)
    if unknown := sorted({*names} - {*WAYS}):
        parser.error(f"{unknown[0]!r} is none of {', '.join(WAYS)}")
    with server("frozen_lake") if given.url is None else nullcontext(given.url) as url:
        expected = through_ragen(url)
        print(f"the episode of seed {SEED}:\n" + "\n\n".join(expected))
        code = 0
        for name in names:
            play, packages = WAYS[name]
            lacking = [package for package in packages if find_spec(package) is None]
            is_equal = not lacking and play(url) == expected
            code |= not is_equal and not lacking
            seen = f"needs {lacking[0]}" if lacking else "same episode" if is_equal else "another episode"
            print(f"{name:<10} {seen}")
    return code


if __name__ == "__main__":
    sys.exit(main())
