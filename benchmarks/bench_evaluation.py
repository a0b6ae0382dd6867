"""An evaluation beside a bare client: the same server, the same prompts, replies a second.

    python benchmarks/bench_evaluation.py --trajectories 256 --turns 4 --slots 64 --latency 0.75

The server is a process of its own that answers so many requests at a time, each after the same time. The evaluation is
the command's own, environments, journal and rows included; the bare client is ``AsyncOpenAI`` with nothing around it,
which sends the prompts that the evaluation sent, twice as many at a time as the server answers. What both cost this
process in processor time is told for each reply; a small evaluation goes before, which imports what is needed.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import multiprocessing
import os
import tempfile
import time
from pathlib import Path
from typing import Any

REPLY = "<think>go on</think><answer>Up</answer>"


class Server:
    """Speaks as much HTTP as the clients here; remembers bodies, and counts replies and seconds since it was asked."""

    def __init__(self, slots: int, latency: float, told: Any) -> None:
        self.slots = asyncio.Semaphore(slots)
        self.latency, self.told = latency, told
        self.bodies: list[Any] = []
        self.first = self.last = 0.0
        choice = {"index": 0, "finish_reason": "stop", "message": {"role": "assistant", "content": REPLY}}
        usage = {"prompt_tokens": 100, "completion_tokens": 10, "total_tokens": 110}
        body = {"id": "c", "object": "chat.completion", "created": 1, "model": "m", "choices": [choice], "usage": usage}
        self.answer = _response(body)

    async def serve(self) -> None:
        """Tell the port, and answer for ever."""
        server = await asyncio.start_server(self.connected, "127.0.0.1", 0, backlog=4096)
        self.told.send(server.sockets[0].getsockname()[1])
        async with server:
            await server.serve_forever()

    async def connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Answer the requests of a connection, one after the other."""
        try:
            while True:
                head = await reader.readuntil(b"\r\n\r\n")
                fields = dict(line.lower().split(b":", 1) for line in head.split(b"\r\n")[1:] if b":" in line)
                body = await reader.readexactly(int(fields.get(b"content-length", b"0")))
                writer.write(await self.answered(head.split(b" ")[1], body))
                await writer.drain()
        except (asyncio.IncompleteReadError, ConnectionError):
            writer.close()

    async def answered(self, path: bytes, body: bytes) -> bytes:
        """The answer to a request."""
        if path.endswith(b"/models"):
            return _response(
                {"object": "list", "data": [{"id": "m", "object": "model", "created": 1, "owned_by": "x"}]}
            )
        if path.endswith(b"/round"):  # what was asked since the last look
            told = {"bodies": self.bodies, "seconds": self.last - self.first}
            self.bodies, self.first = [], 0.0
            return _response(told)
        self.first = self.first or time.perf_counter()
        self.bodies.append(json.loads(body))
        async with self.slots:
            await asyncio.sleep(self.latency)
        self.last = time.perf_counter()
        return self.answer


def _response(body: Any) -> bytes:
    data = json.dumps(body).encode()
    return b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: %d\r\n\r\n%s" % (len(data), data)


def serve(slots: int, latency: float, told: Any) -> None:
    """Run the server; it never ends by itself."""
    asyncio.run(Server(slots, latency, told).serve())


def round_of(port: int) -> tuple[list[Any], float]:
    """What the server was asked since the last look, and the seconds from the first request to the last reply."""
    from urllib.request import urlopen

    with urlopen(f"http://127.0.0.1:{port}/round") as page:
        told = json.loads(page.read())
    return told["bodies"], told["seconds"]


def evaluate(port: int, trajectories: int, turns: int, further: list[str]) -> None:
    """Run the command."""
    from ragen.llm_agent.rollout import command

    with tempfile.TemporaryDirectory() as folder:
        overrides = [
            f"agent_proxy.max_turn={turns}",
            f"es_manager.val.env_groups={trajectories}",
            "es_manager.val.env_configs.tags=[SimpleSokoban]",
            f"es_manager.val.env_configs.n_groups=[{trajectories}]",
            "es_manager.use_multiprocessing=false",
            "actor.model=m",
            f"actor.base_url=http://127.0.0.1:{port}/v1",
            f"output_dir={Path(folder) / 'out'}",
        ]
        code = command.main(["--config-name", "evaluate_api_llm", *overrides, *further])
    assert code == 0, f"the command ended with {code}"


async def ask_bare(port: int, bodies: list[Any], at_a_time: int) -> None:
    """Send the bodies with nothing around the client."""
    from openai import AsyncOpenAI

    slots = asyncio.Semaphore(at_a_time)
    async with AsyncOpenAI(api_key="none", base_url=f"http://127.0.0.1:{port}/v1", max_retries=0) as client:

        async def ask(body: Any) -> None:
            async with slots:
                await client.chat.completions.create(**body)

        await asyncio.gather(*map(ask, bodies))


def main() -> None:
    """Measure both, and print replies a second and their ratio."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--trajectories", type=int, default=128)
    parser.add_argument("--turns", type=int, default=4)
    parser.add_argument("--slots", type=int, default=64, help="requests that the server answers at a time")
    parser.add_argument("--latency", type=float, default=0.75, help="seconds of each")
    parser.add_argument("overrides", nargs="*", help="for the evaluation")
    arguments = parser.parse_args()
    os.environ.pop("OPENAI_BASE_URL", None)
    here, there = multiprocessing.Pipe()
    server = multiprocessing.get_context("spawn").Process(
        target=serve, args=(arguments.slots, arguments.latency, there), daemon=True
    )
    server.start()
    try:
        port = here.recv()
        evaluate(port, 8, 1, arguments.overrides)
        asyncio.run(ask_bare(port, round_of(port)[0], 2 * arguments.slots))
        round_of(port)
        start = time.process_time()
        evaluate(port, arguments.trajectories, arguments.turns, arguments.overrides)
        costs = [time.process_time() - start]
        bodies, seconds = round_of(port)
        start = time.process_time()
        asyncio.run(ask_bare(port, bodies, 2 * arguments.slots))
        costs.append(time.process_time() - start)
        again, bare = round_of(port)
        assert len(again) == len(bodies), "the bare client asked something else"
    finally:
        server.kill()
        server.join()
    rates = len(bodies) / seconds, len(bodies) / bare
    ours, theirs = (1e3 * cost / len(bodies) for cost in costs)
    print(f"processor time a reply: evaluation {ours:.2f} ms, bare client {theirs:.2f} ms")
    print(
        f"{len(bodies)} replies: evaluation {rates[0]:.1f}/s, bare client {rates[1]:.1f}/s, ratio {bare / seconds:.2f}"
    )


if __name__ == "__main__":
    main()
