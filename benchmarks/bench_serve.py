"""``ragen serve`` beside a bare echo of the same messages, and beside OpenEnv's own server with the same environment.

``python benchmarks/bench_serve.py [--sessions 4096] [--rate 820] [--flat-out 64] [--seconds 20] [--workers 2]`` plays a
type of environment over WebSocket on this machine, with clients in a process of their own:

* *paced*: so many sessions, each of which waits between two turns, so that all of them together ask for ``--rate``
  turns a second. How long an answer takes, and by how much the clients' own timers were late, which is what the machine
  added.
* *flat out*: fewer sessions that ask again as soon as they are answered. Turns a second.

Beside each stands the processor time per turn of the server, of its workers and of the clients, which a busy machine
changes little; and of paced sessions, how many turns they could have asked for at most, and why they asked for fewer:
since answers came late, since their own timers did, or both.

All servers run on uvloop if it is installed, else on asyncio's event loop, which takes more of a bare server's time.

Both are done to ``ragen serve``; to a bare starlette endpoint on uvicorn which sends back an answer of the same length;
and to OpenEnv's server around the same environment, if ``openenv`` is installed.
"""

from __future__ import annotations

import argparse
import asyncio
import gc
import json
import multiprocessing
import os
import random
import resource
import socket
import statistics
import sys
import time
from importlib.util import find_spec
from typing import Any

import psutil
from serving import ROOT, Server

sys.path.insert(0, str(ROOT))
MOVES = ("Up", "Down", "Left", "Right")
CONNECTING = 64  # at a time
OPEN_S = 600.0  # for all sessions to be open


def bare_app() -> Any:
    """Answers each message with the last answer of its kind, as long as one of the environment's."""
    from starlette.applications import Starlette
    from starlette.routing import WebSocketRoute

    about = {"turn": 1, "malformed": False, "actions_left": 99, "info": {"success": False}, "truncated": False}
    data = {"observation": {"text": "#" * 41}, "reward": -0.1, "done": False, "metadata": about}
    answer = json.dumps({"type": "observation", "data": data})

    async def echo(websocket: Any) -> None:
        await websocket.accept()
        async for text in websocket.iter_text():
            if json.loads(text)["type"] == "close":
                return
            await websocket.send_text(answer)

    return Starlette(routes=[WebSocketRoute("/ws", echo)])


def openenv_app(env_type: str, most: int) -> Any:
    """OpenEnv's server around an environment of ours."""
    from openenv.core.env_server.http_server import create_fastapi_app
    from openenv.core.env_server.interfaces import Environment
    from openenv.core.env_server.types import Action, Observation, State

    from envlanes.episode.turn import Turn, play_turn
    from ragen.env import resolve_env

    env_class, config_class = resolve_env(env_type)

    class TextAction(Action):
        text: str

    class TextObservation(Observation):
        text: str

    class Played(Environment[TextAction, TextObservation, State]):
        SUPPORTS_CONCURRENT_SESSIONS = True

        def __init__(self) -> None:
            super().__init__()
            self._env = env_class(config_class())
            self._steps = 0

        def reset(self, seed: int | None = None, episode_id: str | None = None, **_: Any) -> TextObservation:
            self._env.reset(seed=seed)
            self._steps = 0
            return TextObservation(text=self._env.render())

        def step(self, action: TextAction, timeout_s: float | None = None, **_: Any) -> TextObservation:
            result = play_turn(self._env, Turn((action.text,), 1))
            self._steps += 1
            return TextObservation(text=result.observation, reward=float(result.reward), done=result.done)

        @property
        def state(self) -> State:
            return State(step_count=self._steps)

    return create_fastapi_app(Played, TextAction, TextObservation, max_concurrent_envs=most)


def serve_app(kind: str, env_type: str, most: int, listening: socket.socket) -> None:
    """Serve one of the two others, in a process of its own."""
    import uvicorn

    allow_files(most)
    app = bare_app() if kind == "bare" else openenv_app(env_type, most)
    config = uvicorn.Config(app, log_level="error", access_log=False)
    uvicorn.Server(config).run(sockets=[listening])


def allow_files(sessions: int) -> None:
    """Let this process have so many connections."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(hard, max(soft, 4 * sessions + 512)), hard))


class Processors:
    """Processor time of a server, of all processes that it has started, and of this one."""

    def __init__(self, pid: int) -> None:
        self._server = psutil.Process(pid)

    def read(self) -> tuple[float, float, float]:
        """Seconds since each of them began."""
        below = sum(_used(each) for each in self._server.children(recursive=True))
        return _used(self._server), below, _used(psutil.Process())


def _used(process: psutil.Process) -> float:
    times = process.cpu_times()
    return float(times.user + times.system)


class Clients:
    """Many sessions in this process's event loop.

    Attributes:
        taken: Seconds of each turn, as the session saw it.
        late: Of each paced turn, by how many seconds this process's own timer was late.
        behind: How many paced turns were asked late since the answer before was not there yet.
        used: Processor seconds of the server, its workers and this process, from when all sessions were open.
        errors: Of each session that failed, why.
    """

    def __init__(self, url: str, count: int, seconds: float, pause: float, processors: Processors) -> None:
        self._url, self._count, self._seconds, self._pause = f"ws{url.removeprefix('http')}/ws", count, seconds, pause
        self._gate = asyncio.Semaphore(CONNECTING)
        self._open, self._all_open = 0, asyncio.Event()
        self._processors, self._last = processors, 0.0
        self.taken: list[float] = []
        self.late: list[float] = []
        self.behind = 0
        self.used: tuple[float, ...] = ()
        self.errors: list[str] = []

    async def run(self) -> float:
        """Play; the seconds from when all sessions were open to the end, or to the last answer if it came later."""
        tasks = [asyncio.create_task(self._session(number)) for number in range(self._count)]
        await asyncio.wait_for(self._all_open.wait(), OPEN_S)
        gc.disable()  # a collection of these thousands of clients would count as a late answer
        before, begin = self._processors.read(), time.perf_counter()
        await asyncio.gather(*tasks)
        self.used = tuple(now - then for now, then in zip(self._processors.read(), before, strict=True))
        gc.enable()
        return max(self._seconds, self._last - begin)

    def _opened(self) -> None:
        self._open += 1
        if self._open == self._count:
            self._all_open.set()

    async def _session(self, number: int) -> None:
        from websockets.asyncio.client import connect

        rng, is_open = random.Random(number), False
        try:
            async with self._gate:
                connection = await connect(self._url, compression=None, ping_interval=None, open_timeout=120)
                await self._ask(connection, "reset", {"seed": number})
            is_open = True
            self._opened()
            await self._all_open.wait()
            now = time.perf_counter()
            end, due = now + self._seconds, now + self._pause * rng.random()
            while (due if self._pause else time.perf_counter()) < end:
                if self._pause:
                    await self._wait_until(due)
                begin = time.perf_counter()
                answer = await self._ask(connection, "step", {"text": rng.choice(MOVES)})
                self._last = time.perf_counter()
                self.taken.append(self._last - begin)
                due += self._pause
                if answer["done"]:
                    await self._ask(connection, "reset", {"seed": rng.randrange(2**31)})
            await connection.close()
        except Exception as error:
            self.errors.append(f"{type(error).__name__}: {error}")
        finally:
            if not is_open:
                self._opened()

    async def _wait_until(self, due: float) -> None:
        left = due - time.perf_counter()
        if left <= 0:
            self.behind += 1
            return
        await asyncio.sleep(left)
        self.late.append(time.perf_counter() - due)

    async def _ask(self, connection: Any, kind: str, data: dict[str, Any]) -> dict[str, Any]:
        await connection.send(json.dumps({"type": kind, "data": data}))
        answer = json.loads(await connection.recv())
        if answer["type"] == "error":
            raise RuntimeError(answer["data"]["message"])
        return answer["data"]


def measure(name: str, url: str, pid: int, count: int, seconds: float, pause: float) -> float:
    """Play, print what was seen, and return turns a second."""
    allow_files(count)
    processors = Processors(pid)

    async def play() -> tuple[Clients, float]:
        clients = Clients(url, count, seconds, pause, processors)
        return clients, await clients.run()

    clients, passed = asyncio.run(play())
    rate, turns = len(clients.taken) / passed, max(1, len(clients.taken))
    middle, high = _percentiles(clients.taken)
    spent = " + ".join(
        f"{1e6 * seconds / turns:.0f} {whose}"
        for seconds, whose in zip(clients.used, ("server", "workers", "clients"), strict=True)
    )
    how = f"{count} sessions, {'paced' if pause else 'flat out'}"
    print(f"{name:<14} {how:<28} {rate:7.0f} turns/s, p50 {middle:7.1f} ms, p99 {high:7.1f} ms; us a turn: {spent}")
    if pause:
        median, most = _percentiles(clients.late)
        print(
            f"{'':<14} asked for {count / pause:.0f} turns/s: {clients.behind} of {turns} turns were late since the "
            f"answer before was; the clients' own timers were late by p50 {median:.1f}, p99 {most:.1f} ms"
        )
    if clients.errors:
        print(f"{'':<14} {len(clients.errors)} sessions failed, first: {clients.errors[0][:100]}")
    sys.stdout.flush()
    return rate


def _percentiles(seconds: list[float]) -> tuple[float, float]:
    """The median and the 99th percentile, in milliseconds."""
    if len(seconds) < 2:
        return 0.0, 0.0
    cuts = statistics.quantiles(seconds, n=100)
    return 1e3 * cuts[49], 1e3 * cuts[98]


def main() -> None:
    """Read the command line, and measure all three."""
    top = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    top.add_argument("--env", default="sokoban")
    top.add_argument("--sessions", type=int, default=4096, help="that are paced; 0 leaves them out")
    top.add_argument("--rate", type=float, default=820.0, help="turns a second of all paced sessions together")
    top.add_argument("--flat-out", type=int, default=64, help="sessions that ask again at once")
    top.add_argument("--seconds", type=float, default=20.0, help="of each measurement")
    top.add_argument("--workers", type=int, default=min(8, os.cpu_count() or 1))
    top.add_argument("--only", nargs="+", choices=("ragen", "bare", "openenv"), default=["ragen", "bare", "openenv"])
    given = top.parse_args()
    most = max(given.sessions, given.flat_out)
    allow_files(most)
    load = os.getloadavg()[0]
    print(
        f"{os.cpu_count()} processors, load {load:.1f} before the run, {given.workers} workers, {given.env}, "
        f"event loop of {'uvloop' if find_spec('uvloop') else 'asyncio'}",
        flush=True,
    )
    context, rates = multiprocessing.get_context("spawn"), {}
    for kind in given.only:
        if kind == "openenv" and find_spec("openenv") is None:
            print("openenv        is not installed")
            continue
        name, process, server = {"ragen": "ragen serve", "bare": "bare echo"}.get(kind, kind), None, None
        if kind == "ragen":
            words = ("--env", given.env, "--max-sessions", str(most), f"es_manager.max_workers={given.workers}")
            server = Server(*words)
            server.start()
            url, pid = server.url, server.pid
        else:
            listening = socket.create_server(("127.0.0.1", 0), backlog=2048)
            url = f"http://127.0.0.1:{listening.getsockname()[1]}"
            process = context.Process(target=serve_app, args=(kind, given.env, most, listening))
            process.start()
            pid = process.pid
        try:
            if given.flat_out:
                rates[name] = measure(name, url, pid, given.flat_out, given.seconds, 0.0)
            if given.sessions:
                measure(name, url, pid, given.sessions, given.seconds, given.sessions / given.rate)
        finally:
            if server is not None:
                server.stop()
            if process is not None:
                process.terminate()
                process.join()
                listening.close()
    if {"ragen serve", "bare echo"} <= set(rates):
        share = rates["ragen serve"] / rates["bare echo"]
        print(f"flat out, ragen serve plays {share:.2f} of the bare echo's turns a second")


if __name__ == "__main__":
    main()
