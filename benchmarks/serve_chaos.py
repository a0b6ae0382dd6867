"""Episodes over ``ragen serve`` while connections are cut, workers killed and the server restarted: are they the same?

``python benchmarks/serve_chaos.py [--sessions 32] [--cuts 60] [--kills 12] [--restarts 2]`` starts a server with four
types of environments and a folder for journals. First some sessions play every episode undisturbed. Then that many
sessions play the same episodes, and between and during their calls connections are cut, worker processes are killed
with SIGKILL, and the server itself is killed or ended and started again, spread evenly over the turns. Clients keep a
token for their session and send a call whose answer was lost again with its ``request_id``. Every answer is compared
with the undisturbed one, its turn number included, and at the end of an episode the server's count of turns with the
client's.

The exit code is 0 if no episode differs and no turn was played twice.
"""

from __future__ import annotations

import argparse
import random
import resource
import signal
import sys
import tempfile
import threading
import time
import uuid
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

import psutil
from serving import ROOT, Server

sys.path.insert(0, str(ROOT))

from ragen.env.openenv.wire import Session
from ragen.errors import OpenEnvError

MOVES = {
    "frozen_lake": ("Left", "Down", "Right", "Up"),
    "sokoban": ("Up", "Down", "Left", "Right"),
    "game_2048": ("Up", "Right", "Down", "Left"),
    "rubikscube": ("U", "R'", "F", "U'"),
}
CALL_S = 300.0  # that a call may take, in which the server may be started again several times

Answers = list[dict[str, Any]]
Key = tuple[str, int]  # type of environment and seed


class Player:
    """A client with a session, of whose connection the saboteur knows."""

    def __init__(self, url: str) -> None:
        self._session = Session(url, {}, CALL_S, f"/s/{uuid.uuid4().hex}")

    def episode(self, key: Key, turns: int, done: Any = None) -> tuple[Answers, int]:
        """Play an episode; its answers, and how many turns the server has counted."""
        env, seed = key
        rng = random.Random(seed)
        answers = [self._session.call("reset", {"env": env, "seed": seed, "episode_id": f"{env}-{seed}"})]
        while len(answers) <= turns and not answers[-1]["done"]:
            answers.append(self._session.call("step", {"text": rng.choice(MOVES[env])}))
            if done is not None:
                done()
        return answers, int(self._session.call("state", {})["step_count"])

    def cut(self) -> bool:
        """Cut the connection, whatever is under way; whether there was one."""
        connection = self._session._socket
        if connection is None:
            return False
        with suppress(OSError):
            connection.socket.shutdown(2)
        return True

    def close(self) -> None:
        """End the session."""
        self._session.close(CALL_S)


class Saboteur:
    """Does what is planned for each number of turns played, in the thread of the client that played it.

    That client waits and the others play on, so that an accident happens while turns are left. An accident that finds
    nothing to cut or to kill, since the server has just been started, comes after the next turn.
    """

    def __init__(self, plan: dict[int, list[str]], server: Server, players: list[Player], seed: int) -> None:
        self._plan, self._server, self._players = plan, server, players
        self._rng = random.Random(seed)
        self._turns, self._due = 0, list[str]()
        self._lock = threading.Lock()
        self._accidents = {"cut": self._cut, "kill": self._kill, "restart": self._restart}
        self.did: Counter[str] = Counter()

    def count(self) -> None:
        """A turn was played; thread-safe."""
        with self._lock:
            self._turns += 1
            due, self._due = self._due + self._plan.pop(self._turns, []), []
            for order in due:
                if self._accidents[order]():
                    self.did[order] += 1
                else:
                    self._due.append(order)

    def _restart(self) -> bool:
        self._server.stop(self._rng.choice((signal.SIGKILL, signal.SIGTERM)))
        self._server.start()
        return True

    def _kill(self) -> bool:
        workers = self._server.workers()
        with suppress(psutil.NoSuchProcess, IndexError):
            self._rng.choice(workers).kill()
            return True
        return False

    def _cut(self) -> bool:
        return any(player.cut() for player in self._rng.sample(self._players, len(self._players)))


def planned(turns: int, counts: dict[str, int], rng: random.Random) -> dict[int, list[str]]:
    """The accidents by the number of turns before them, in the first nine tenths."""
    plan: dict[int, list[str]] = {}
    for order, count in counts.items():
        for index in range(count):
            moment = 1 + int(0.9 * turns * (index + rng.random()) / count)
            plan.setdefault(moment, []).append(order)
    return plan


def run(sessions: int, episodes: int, turns: int, seeds: int, counts: dict[str, int], workers: int, seed: int) -> int:
    """Play calmly, play with accidents, and compare; the exit code."""
    keys = [(env, number) for env in MOVES for number in range(seeds)]
    with tempfile.TemporaryDirectory() as folder:
        words = [word for env in MOVES for word in ("--env", env)]
        server = Server(*words, "--journal-dir", folder, f"es_manager.max_workers={workers}")
        server.start()
        try:
            begin = time.monotonic()
            calm = dict(zip(keys, _played(server.url, [[key] for key in keys], turns), strict=True))
            expected = {key: found[0][0] for key, found in calm.items()}
            per_turn = (time.monotonic() - begin) / sum(len(answers) - 1 for answers in expected.values())
            rng = random.Random(seed)
            orders = [rng.choices(keys, k=episodes) for _ in range(sessions)]
            total = sum(len(expected[key]) - 1 for order in orders for key in order)
            counted = f"{sessions} sessions, {sessions * episodes} episodes, {total} turns"
            print(f"{counted}; {per_turn * 1e3:.1f} ms a turn calmly", flush=True)
            plan = planned(total, counts, rng)
            begin = time.monotonic()
            results = _disturbed(server, orders, turns, plan, seed)
            seconds, did = time.monotonic() - begin, results[1]
        finally:
            server.stop()
        left = len(list(Path(folder).glob("*.jsonl")))
    differing = double = failed = 0
    for order, found in zip(orders, results[0], strict=True):
        if isinstance(found, OpenEnvError):
            failed += 1
            print(f"a session failed: {found}")
            continue
        for key, (answers, counted) in zip(order, found, strict=True):
            differing += answers != expected[key]
            double += counted != len(answers) - 1
            if answers != expected[key]:
                print(
                    f"{key}: {next(pair for pair in zip(answers, expected[key], strict=False) if pair[0] != pair[1])}"
                )
    print(
        f"{did['cut']} cuts, {did['kill']} kills of workers, {did['restart']} restarts of the server "
        f"in {seconds:.0f} s ({total / seconds:.0f} turns/s): {differing} differing episodes, {double} with another "
        f"count of turns, {failed} failed sessions, {left} journals left"
    )
    is_short = any(did[order] < count for order, count in counts.items())
    return int(bool(differing or double or failed or left) or is_short)


def _played(url: str, orders: list[list[Key]], turns: int) -> list[list[tuple[Answers, int]]]:
    with ThreadPoolExecutor(16) as threads:
        return list(threads.map(partial(_play, turns=turns), map(Player, [url] * len(orders)), orders))


def _play(player: Player, order: list[Key], turns: int, done: Any = None) -> list[tuple[Answers, int]]:
    try:
        return [player.episode(key, turns, done) for key in order]
    finally:
        player.close()


def _disturbed(
    server: Server, orders: list[list[Key]], turns: int, plan: dict[int, list[str]], seed: int
) -> tuple[list[Any], Counter[str]]:
    players = [Player(server.url) for _ in orders]
    saboteur = Saboteur(plan, server, players, seed)

    def play(player: Player, order: list[Key]) -> Any:
        try:
            return _play(player, order, turns, saboteur.count)
        except OpenEnvError as error:
            return error

    with ThreadPoolExecutor(len(players)) as threads:
        return list(threads.map(play, players, orders)), saboteur.did


def main() -> int:
    """Read the command line; the exit code."""
    top = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    top.add_argument("--sessions", type=int, default=32)
    top.add_argument("--episodes", type=int, default=4, help="that each session plays")
    top.add_argument("--turns", type=int, default=8, help="of an episode, at most")
    top.add_argument("--seeds", type=int, default=4, help="of each type of environment")
    top.add_argument("--cuts", type=int, default=60)
    top.add_argument("--kills", type=int, default=12)
    top.add_argument("--restarts", type=int, default=2)
    top.add_argument("--workers", type=int, default=2)
    top.add_argument("--seed", type=int, default=0)
    given = vars(top.parse_args())
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(hard, max(soft, 8 * given["sessions"] + 256)), hard))
    counts = {"cut": given.pop("cuts"), "kill": given.pop("kills"), "restart": given.pop("restarts")}
    return run(counts=counts, **given)


if __name__ == "__main__":
    sys.exit(main())
