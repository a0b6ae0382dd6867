"""Parallel environment processing, from replies to training rows: does it work here?

    python test_parallel_envs.py                 every check, one line each; exits with 1 if one fails
    python test_parallel_envs.py container       only those whose name contains this word

Containers are played in the main process and in workers of both kinds, undisturbed and with workers killed between
steps; all that they give must be equal. pytest collects the same checks.
"""

from __future__ import annotations

import logging
import os
import signal
import sys
import time
import traceback
from collections.abc import Callable, Sequence
from contextlib import suppress
from random import Random
from typing import Any

from ragen.env import (
    MultiProcessEnvironmentContainer,
    SokobanEnvironmentManager,
    TrajectoryCollector,
    create_projection_function,
    get_supported_environment_types,
    make_environments,
    validate_environment_config,
)

SOKOBAN = {"dim_x": 6, "dim_y": 6, "num_boxes": 1, "max_steps": 10}
AT_HOME = {"use_lanes": False}
TURNS = 4
REPLIES = {
    "sokoban": ("<think>Go.</think><action>up</action>", 1),
    "frozen_lake": ("<action>south</action>", 2),
    "bandit": ("<answer>Dragon</answer>", 2),
    "countdown": ("It is <answer>(3 + 4) * 5</answer>.", "(3 + 4) * 5"),
    "metamathqa": (" 42 ", "42"),
    "webshop": ("<action>search[red shoes]</action>", "search[red shoes]"),
}


def expect(fact: bool, what: str) -> None:
    """See that something holds, also under ``python -O``.

    Raises:
        AssertionError: It does not.
    """
    if not fact:
        raise AssertionError(what)


def check_projections() -> str:
    """Every type's reply becomes its action, in both styles, and what was given stays as it was."""
    for env_type, (reply, action) in REPLIES.items():
        texts = [reply, reply]
        actions, valids = create_projection_function(env_type)(texts)
        expect(actions == [action] * 2 and valids == [True] * 2, f"{env_type}: {reply!r} gave {actions}, {valids}")
        expect(texts == [reply, reply], f"{env_type}: the texts were changed")
        _, valids = create_projection_function(env_type, "verl-agent")([reply])
        expect(valids == [int("<think>" in reply)], f"{env_type}: verl-agent's style gave {valids}")
    return f"{len(REPLIES)} types, two styles"


def check_container() -> str:
    """Two groups of two Sokobans are reset and stepped in workers."""
    with MultiProcessEnvironmentContainer("sokoban", 2, 2, 42, SOKOBAN, settings=in_workers(2)) as envs:
        shown, infos = envs.reset()
        expect(shown[0] == shown[1] != shown[2] == shown[3], "members of a group begin alike, groups do not")
        shown, rewards, dones, infos = envs.step([1, 2, None, 4])
        expect([len(each) for each in (shown, rewards, dones, infos)] == [4] * 4, "four of each")
        expect(rewards[2] == 0 and infos[2] == {}, "an environment that gets None is left alone")
        return f"{len(envs)} environments in {len(envs.stats()) - 1} workers"


def check_workers_equal() -> str:
    """Any number of workers of any kind gives what none gives, killed or not."""
    compared = 0
    for env_type in ("sokoban", "bandit"):
        alone = played(env_type, AT_HOME)
        for backend in ("process", "executor"):
            for kills in (False, True) if env_type == "sokoban" else (False,):
                settings = in_workers(2, backend)
                expect(played(env_type, settings, kills) == alone, f"{env_type}, {backend}, killed: {kills}")
                compared += 1
    return f"{compared} runs equal, some of them with workers killed"


def check_manager() -> str:
    """A manager prompts, reads replies, keeps histories and tells success."""
    container = MultiProcessEnvironmentContainer("sokoban", 1, 2, 42, SOKOBAN, settings=AT_HOME)
    with SokobanEnvironmentManager(container, create_projection_function("sokoban"), "sokoban") as envs:
        obs, _ = envs.reset()
        expect(obs["anchor"][0] in obs["text"][0] and obs["image"] is None, "the prompt shows the state")
        obs, rewards, dones, infos = envs.step(["<action>up</action>", "up?"])
        expect([bool(info["is_action_valid"]) for info in infos] == [True, False], "which replies were valid")
        expect("Action 1: 'Up'" in obs["text"][0], "the prompt shows the last action")
        success = envs.success_evaluator([infos[:1], infos[1:]], [[{"active_masks": True}]] * 2)
        expect(rewards.shape == dones.shape == success["success_rate"].shape == (2,), "arrays of one value each")
    return "prompts, history, validity, success"


def check_collector() -> str:
    """Prompts become tokens, and a rollout becomes a row for each turn, the same wherever environments live."""
    from verl import DataProto

    from ragen.llm_agent.tokenizer import load_tokenizer

    tokenizer = load_tokenizer()
    config = {"env": {"max_steps": TURNS}, "data": {"max_prompt_length": 800}}
    batches = []
    for settings in (AT_HOME, in_workers(2)):
        container = MultiProcessEnvironmentContainer("sokoban", 2, 2, 42, SOKOBAN, settings=settings)
        with SokobanEnvironmentManager(container, create_projection_function("sokoban"), "sokoban") as envs:
            collector = TrajectoryCollector(config, tokenizer)
            prompts = collector.preprocess_batch(DataProto(), envs.reset()[0])
            expect(prompts.batch["input_ids"].shape == (4, 800), "four prompts, padded on the left")
            batches.append(collector.multi_turn_loop(DataProto(), Dice(), envs))
    first, second = batches
    expect(first.batch["responses"].equal(second.batch["responses"]), "equal replies")
    rewards = [list(batch.non_tensor_batch["rewards"]) for batch in batches]
    expect(rewards[0] == rewards[1] and len(rewards[0]) == 4 * TURNS, "equal rewards")
    return f"{len(first)} rows of {first.batch['input_ids'].shape[1]} tokens"


def check_factory() -> str:
    """The configuration that comes with the package makes managers of several tags."""
    from ragen.config.loading import load_config

    config = load_config("parallel_envs")
    validate_environment_config(config)
    train, val = make_environments(config)
    with train, val:
        return f"{len(train)} and {len(val)} environments, {len(get_supported_environment_types())} types known"


class Dice:
    """An actor whose replies follow from the prompt alone."""

    def generate_sequences(self, prompts: Any) -> Any:
        """Answer with a move for each prompt."""
        from verl import DataProto

        from ragen.llm_agent.batches.dataproto import object_array

        moves = [
            Random(chat[0]["content"]).choice(["up", "down", "left"]) for chat in prompts.non_tensor_batch["raw_prompt"]
        ]
        texts = object_array(f"<action>{move}</action>" for move in moves)
        return DataProto.from_dict(tensors=None, non_tensors={"response_texts": texts})


def in_workers(count: int, backend: str = "process") -> dict[str, Any]:
    """Settings for so many workers."""
    return {"use_lanes": True, "max_workers": count, "backend": backend, "max_restarts": 100}


def played(env_type: str, settings: dict[str, Any], kills: bool = False) -> list[Any]:
    """All that two episodes of random actions give."""
    kwargs = SOKOBAN if env_type == "sokoban" else None
    seen: list[Any] = []
    rng = Random(0)
    with MultiProcessEnvironmentContainer(env_type, 2, 2, 7, kwargs, settings=settings) as envs:
        for _ in range(2):
            seen.append(envs.reset())
            for turn in range(TURNS):
                if kills and turn == 2:
                    kill_workers(envs)
                seen.append(envs.step([rng.choice([*some, None]) for some in envs.get_available_actions()]))
    return seen


def kill_workers(envs: Any) -> None:
    """Kill all workers of a container, as the system does when memory is short."""
    for lane in envs.stats():
        if lane.lane != "main" and lane.pid:
            with suppress(ProcessLookupError):
                os.kill(lane.pid, signal.SIGKILL)


CHECKS: dict[str, Callable[[], str]] = {
    name.removeprefix("check_"): function for name, function in list(globals().items()) if name.startswith("check_")
}


def main(words: Sequence[str]) -> int:
    """Run the checks whose names contain one of the words; the exit code."""
    chosen = {name: check for name, check in CHECKS.items() if not words or any(word in name for word in words)}
    if not chosen:
        print(f"no check is called so; there are {', '.join(CHECKS)}.", file=sys.stderr)
        return 1
    failed = 0
    logging.disable(logging.WARNING)  # of workers that are killed here
    for name, check in chosen.items():
        start = time.perf_counter()
        try:
            told = f"ok      {check()}"
        except Exception as error:
            traceback.print_exc()
            told, failed = f"FAILED  {type(error).__name__}: {error}", failed + 1
        print(f"{name:14} {time.perf_counter() - start:5.1f} s  {told}", flush=True)
    print(f"{len(chosen) - failed} of {len(chosen)} checks passed.")
    return 1 if failed else 0


def pytest_generate_tests(metafunc: Any) -> None:
    """Give pytest every check as a test of its own."""
    if "check" in metafunc.fixturenames:
        metafunc.parametrize("check", CHECKS.values(), ids=CHECKS.keys())


def test_parallel_environment_processing_works(check: Callable[[], str]) -> None:
    """The check, under pytest."""
    assert check()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
