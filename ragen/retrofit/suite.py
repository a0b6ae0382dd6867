"""The equivalence suite of a retrofitted checkout: ``cd CHECKOUT && python -m ragen.retrofit.suite``.

Every tag that the checkout's configurations play is played four times with the same seeds and the same replies: in the
main process, in workers, in workers of which one is killed before each turn, and by the ``EnvStateManager`` that the
checkout had before. All that can be seen is compared. Then it is timed with as many environments as the configurations
have, or fewer where those take long.
"""

from __future__ import annotations

import argparse
import contextlib
import importlib.util
import logging
import os
import random
import signal
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ragen.errors import ConfigError
from ragen.llm_agent.es_manager import EnvStateManager
from ragen.llm_agent.testing.equivalence import Recording, record_episode
from ragen.retrofit.comparison import first_difference
from ragen.retrofit.configs import Played, played_tags
from ragen.retrofit.surroundings import ClassState, alarm, first_line, quiet

EQUAL, DIFFERENT, REFUSED, NOTHING = 0, 1, 2, 3
GROUPS, GROUP_SIZE, SEED, EPISODES, TURNS = 2, 2, 10_000, 2, 4
ODD = ("", "fly", "Up Down", "<answer>Up</answer>", "search[lamp]", "1 + 1", "\u2191")
_BUDGET = 1.5  # seconds that a timed episode may take in the main process
_MOST_TIMED = 64
_PATIENCE = 30  # seconds that an episode of one tag may take; what takes longer waits for something that is not here


@dataclass
class Verdict:
    """What was found of a tag.

    Attributes:
        played: The tag.
        skipped: Why it was not played; empty if it was.
        differences: What differed, a sentence each.
        entries: History entries that were compared with those of the checkout's own manager.
        envs: Environments that were timed; 0 if none were.
        main_s: Seconds that an episode of these took in the main process.
        workers_s: Likewise in workers.
        stays: Whether it stays in the main process, so that there is nothing to time.
    """

    played: Played
    skipped: str = ""
    differences: list[str] = field(default_factory=list)
    entries: int = 0
    envs: int = 0
    main_s: float = 0.0
    workers_s: float = 0.0
    stays: bool = False


class Replies:
    """Draws replies once, and gives the same ones to whoever plays the same episodes after that."""

    def __init__(self) -> None:
        """Start with nothing drawn."""
        self._drawn: dict[tuple[int, int, int], list[str]] = {}
        self.episode = 0

    def inputs(self, manager: Any, caches: Sequence[dict[str, Any]], turn: int) -> list[dict[str, Any]]:
        """Inputs of ``EnvStateManager.step`` for the environments of these caches."""
        given = []
        for cache in caches:
            key = self.episode, turn, cache["env_id"]
            if key not in self._drawn:
                self._drawn[key] = self._draw(manager.envs[cache["env_id"]], key)
            actions = self._drawn[key]
            said = f"<answer>{' || '.join(actions)}</answer>"
            raw = f"<think></think>{said}"
            given.append({"env_id": cache["env_id"], "actions": actions, "llm_response": said, "llm_raw_response": raw})
        return given

    def _draw(self, entry: dict[str, Any], key: tuple[int, int, int]) -> list[str]:
        rng = random.Random(str(key))
        lookup = getattr(entry["env"].config, "action_lookup", None)
        names = [str(name) for name in lookup.values()] if lookup else [*ODD]
        actions = [rng.choice(names) for _ in range(rng.randint(1, 3))]
        return [*actions, rng.choice(ODD)] if rng.random() < 0.2 else actions


def manager_config(played: Played, groups: int, size: int, **settings: Any) -> Any:
    """A configuration of one tag, as OmegaConf has it: RAGEN's own manager reads attributes."""
    from omegaconf import OmegaConf

    part = {
        "env_groups": groups,
        "group_size": size,
        "env_configs": {"tags": [played.tag], "n_groups": [groups]},
    }
    settings = {"format_penalty": played.format_penalty, "capsule_dir": None, **settings}
    entries = {played.tag: {"env_config": None, **played.entry}}
    return OmegaConf.create(
        {"seed": {"train": SEED}, "custom_envs": entries, "es_manager": {"train": part, **settings}}
    )


def examine(played: Played, workers: int, own: Any) -> Verdict:
    """Play a tag in every way, compare, and time it."""
    verdict = Verdict(played)
    replies = Replies()
    counted = ClassState(played.entry["env_type"])
    try:
        with alarm(_PATIENCE):
            _recorded(played, Replies(), 1, use_multiprocessing=False, on_env_failure="raise")
        counted.restore()
        expected, seconds, home = _recorded(played, replies, use_multiprocessing=False)
    except Exception as error:
        verdict.skipped = first_line(error)
        return verdict
    lanes = {"use_multiprocessing": True, "max_workers": workers}
    for name, disturb in (("in workers", None), ("with workers killed", kill_a_worker)):
        counted.restore()
        try:
            got, _, home = _recorded(played, replies, disturb=disturb, **lanes)
        except Exception as error:
            verdict.differences.append(f"{name}: {first_line(error)}")
            continue
        verdict.stays = home == "main"
        if (difference := expected.first_difference(got)) is not None:
            verdict.differences.append(f"{name}: {difference}")
    if own is not None:
        _compare_with_own(verdict, replies, own, counted)
    if not verdict.differences and not verdict.stays:
        _time(verdict, lanes, seconds)
    return verdict


def _recorded(
    played: Played, replies: Replies, episodes: int = EPISODES, disturb: Any = None, **settings: Any
) -> tuple[Recording, float, str]:
    """What a manager showed, the seconds an environment took an episode, and where the first one lived."""
    recording = Recording()
    with EnvStateManager(manager_config(played, GROUPS, GROUP_SIZE, **settings)) as manager:
        for episode in range(episodes):
            replies.episode = episode
            record_episode(manager, replies, TURNS, None, disturb, recording)
        seconds = recording.seconds / (episodes * GROUPS * GROUP_SIZE)
        return recording, seconds, manager.home(0)


def kill_a_worker(manager: EnvStateManager, turn: int) -> None:
    """Kill the worker of another lane in every turn."""
    pids = [lane.pid for lane in manager.lane_stats() if lane.pid not in (None, os.getpid())]
    if pids:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pids[turn % len(pids)], signal.SIGKILL)  # type: ignore[arg-type]


def _compare_with_own(verdict: Verdict, replies: Replies, own: Any, counted: ClassState) -> None:
    """Play what was played with the checkout's own manager too."""
    config = manager_config(verdict.played, GROUPS, GROUP_SIZE, use_multiprocessing=False)
    shown = []
    for kind in (own, EnvStateManager):
        counted.restore()
        try:
            manager = kind(config)
            shown.append(_episodes(manager, replies))
            manager.close()
        except Exception as error:
            verdict.differences.append(f"{kind.__module__}.EnvStateManager raised: {first_line(error)}")
            return
    verdict.entries = sum(len(cache["history"]) for states in shown[0] for cache in states)
    if difference := first_difference(shown[0], shown[1]):
        verdict.differences.append(f"from its own EnvStateManager's: {difference}")


def _episodes(manager: Any, replies: Replies) -> list[Any]:
    shown = []
    for episode in range(EPISODES):
        replies.episode = episode
        active = manager.reset()
        for turn in range(TURNS):
            if not active:
                break
            active = manager.step(replies.inputs(manager, active, turn))
        shown.append([dict(cache) for cache in manager.get_rollout_states()])
    return shown


def _time(verdict: Verdict, lanes: dict[str, Any], seconds: float) -> None:
    """Time an episode in the main process and in workers, after one that warms both up."""
    affordable = int(_BUDGET / max(seconds, 1e-6)) // GROUP_SIZE * GROUP_SIZE
    verdict.envs = max(4 * GROUP_SIZE, min(verdict.played.most, _MOST_TIMED, affordable))
    times = []
    for settings in ({"use_multiprocessing": False}, lanes):
        replies = Replies()
        groups = max(1, verdict.envs // GROUP_SIZE)
        with EnvStateManager(manager_config(verdict.played, groups, GROUP_SIZE, **settings)) as manager:
            manager.reset(SEED - 1)
            times.append(min(_timed_episode(manager, replies, episode) for episode in range(2)))
    verdict.main_s, verdict.workers_s = times


def _timed_episode(manager: EnvStateManager, replies: Replies, episode: int) -> float:
    replies.episode = episode
    start = time.perf_counter()
    active = manager.reset(SEED)
    spent = time.perf_counter() - start
    for turn in range(TURNS):
        inputs = replies.inputs(manager, active, turn)
        start = time.perf_counter()
        active = manager.step(inputs) if inputs else []
        spent += time.perf_counter() - start
    return spent


# The command


def main(arguments: Sequence[str] | None = None) -> int:
    """Examine every tag, print a table, and return 0 if all that could be played is equal.

    Returns:
        0; 1 if something differed, 2 if a configuration cannot be read, 3 if nothing could be played.
    """
    parser = argparse.ArgumentParser(prog="python -m ragen.retrofit.suite", description=__doc__.split("\n\n")[1])
    parser.add_argument("--config-dir", type=Path, default=Path("config"), help="default: %(default)s")
    parser.add_argument(
        "--config-name", action="append", help="one of them; may be given more than once (default: all)"
    )
    parser.add_argument("--workers", type=int, default=2, help="worker processes (default: %(default)s)")
    parser.add_argument("--own", type=Path, help="file of the EnvStateManager that the checkout had before")
    options = parser.parse_args(arguments)
    try:
        tags = played_tags(options.config_dir, options.config_name)
    except ConfigError as error:
        print(f"error: {error}", file=sys.stderr)
        return REFUSED
    logging.disable(logging.WARNING)
    own = _own_manager(options.own)
    verdicts = []
    for played in tags:
        with quiet():
            verdict = examine(played, options.workers, own)
        verdicts.append(verdict)
        print(_row(verdict), flush=True)
    return _conclude(verdicts)


def _own_manager(path: Path | None) -> Any:
    """The class of the manager that the checkout had before; None, with a line that says why, if there is none."""
    if path is None:
        return None
    spec = importlib.util.spec_from_file_location("own_es_manager", path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    try:
        spec.loader.exec_module(module)
    except Exception as error:
        print(f"its own EnvStateManager cannot be imported here, so nothing is compared with it: {first_line(error)}")
        return None
    return module.EnvStateManager


def _row(verdict: Verdict) -> str:
    name = f"  {verdict.played.tag:24}"
    if verdict.skipped:
        return f"{name} not played: {verdict.skipped}"
    if verdict.differences:
        return f"{name} DIFFERS {'; '.join(verdict.differences)}"
    same = f"equal, {verdict.entries} entries as its own manager's" if verdict.entries else "equal"
    if verdict.stays:
        return f"{name} {same}; stays in the main process"
    gain = verdict.main_s / verdict.workers_s
    pays = f"workers pay, x{gain:.1f}" if gain > 1.1 else "workers do not pay"
    return (
        f"{name} {same}; an episode of {verdict.envs}: {1e3 * verdict.main_s:.1f} ms in the main process, "
        f"{1e3 * verdict.workers_s:.1f} ms in workers: {pays}"
    )


def _conclude(verdicts: list[Verdict]) -> int:
    skipped = [each for each in verdicts if each.skipped]
    different = [each for each in verdicts if each.differences]
    paying = sorted({v.played.tag for v in verdicts if v.envs and v.main_s > 1.1 * v.workers_s})
    equal = len(verdicts) - len(skipped) - len(different)
    print(f"{equal} equal, {len(different)} different, {len(skipped)} not played.")
    if equal:
        print(
            f"workers pay for: {', '.join(paying) or 'none of them'} (use_multiprocessing: auto finds that out itself)"
        )
    if different:
        return DIFFERENT
    return EQUAL if equal else NOTHING


if __name__ == "__main__":
    sys.exit(main())
