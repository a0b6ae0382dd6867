"""Small OpenEnv servers in this process, honest and broken, and ``ragen serve``'s application on a port of its own."""

from __future__ import annotations

import itertools
import json
import random
import socket
import threading
import time
from contextlib import contextmanager
from http import HTTPStatus

from websockets.exceptions import ConnectionClosed
from websockets.sync.server import serve

clock = time.time
MOVE = {"properties": {"move": {"type": "integer", "minimum": 0, "maximum": 3}}, "required": ["move"]}


class Honest:
    """Draws numbers from a generator of its own; a session has one object."""

    def __init__(self):
        self.rng, self.turn, self.board = random.Random(0), 0, [0]

    def reset(self, seed):
        self.rng, self.turn = random.Random(seed), 0
        self.board = [self.rng.randrange(1000)]
        return self.show()

    def step(self, move):
        self.turn += 1
        self.board = [*self.board[-3:], self.rng.randrange(1000) + move]
        return self.show()

    def show(self):
        return {"board": self.board, "turn": self.turn}, float(self.board[-1] % 7), self.turn >= 6


@contextmanager
def server(kind=Honest, action=MOVE, most=None, cuts=()):
    """The address of a server of such environments, one for each connection.

    Args:
        kind: What plays.
        action: The schema of actions; those that lack its required fields are refused.
        most: Sessions at a time; None for any number.
        cuts: Of all messages that arrive, counted from 0, those at which the connection is cut before an answer.
    """
    numbers, open_now = itertools.count(), set()

    def answer(env, message):
        data = message.get("data") or {}
        if message["type"] == "reset":
            observation, reward, done = *env.reset(data.get("seed"))[:1], None, False
        elif not set(action["required"]) <= set(data):
            return {"type": "error", "data": {"code": "VALIDATION_ERROR", "message": "a field is missing"}}
        else:
            try:
                observation, reward, done = env.step(data["move"])
            except ValueError as error:
                return {"type": "error", "data": {"code": "EXECUTION_ERROR", "message": str(error)}}
        return {"type": "observation", "data": {"observation": observation, "reward": reward, "done": done}}

    def converse(connection):
        env = kind()
        if most is not None and len(open_now) >= most:
            error = {"code": "CAPACITY_REACHED", "message": "full", "max_sessions": most}
            connection.send(json.dumps({"type": "error", "data": error}))
            return
        open_now.add(env)
        try:
            for raw in connection:
                message = json.loads(raw)
                if message["type"] == "close":
                    return
                if next(numbers) in cuts:
                    connection.socket.shutdown(socket.SHUT_RDWR)
                    return
                connection.send(json.dumps(answer(env, message)))
        except ConnectionClosed:
            pass
        finally:
            open_now.discard(env)

    def page(connection, request):
        if request.path == "/schema":
            return connection.respond(HTTPStatus.OK, json.dumps({"action": action, "observation": {}, "state": {}}))
        return None if request.path.endswith("/ws") else connection.respond(HTTPStatus.NOT_FOUND, "")

    with serve(converse, "127.0.0.1", 0, process_request=page) as listening:
        thread = threading.Thread(target=listening.serve_forever)
        thread.start()
        try:
            yield f"http://127.0.0.1:{listening.socket.getsockname()[1]}"
        finally:
            listening.shutdown()
            thread.join()


@contextmanager
def ours(sessions, **options):
    """The address of ``ragen serve``'s application with these sessions."""
    import uvicorn

    from ragen.serve.app import create_app

    listening = socket.create_server(("127.0.0.1", 0))
    config = uvicorn.Config(create_app(sessions, **options), log_level="warning", timeout_graceful_shutdown=1)
    running = uvicorn.Server(config)
    thread = threading.Thread(target=running.run, args=([listening],))
    thread.start()
    try:
        yield f"http://127.0.0.1:{listening.getsockname()[1]}"
    finally:
        running.should_exit = True
        thread.join()
        listening.close()
