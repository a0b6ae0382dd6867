"""An OpenAI-compatible server on localhost that answers as a test tells it to, faults included."""

import json
import threading
from collections import Counter
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer


def completion(text, prompt_tokens=7, completion_tokens=3, **message):
    """The body of a chat completion."""
    return {
        "id": "c1",
        "object": "chat.completion",
        "created": 1,
        "model": "tiny",
        "choices": [
            {"index": 0, "finish_reason": "stop", "message": {"role": "assistant", "content": text, **message}}
        ],
        "usage": {
            "prompt_tokens": prompt_tokens,
            "completion_tokens": completion_tokens,
            "total_tokens": prompt_tokens + completion_tokens,
        },
    }


def say(*args, **message):
    """A chat completion; see :func:`completion`."""
    return raw(json.dumps(completion(*args, **message)))


def raw(body, kind="application/json"):
    """Any body, with status 200."""
    return lambda handler: handler.answer(200, body, {"Content-Type": kind})


def fail(status, message="no", code=None, **headers):
    """An error as such servers send it."""
    body = json.dumps({"error": {"message": message, "code": code, "type": "x", "param": None}})
    names = {name.replace("_", "-"): value for name, value in headers.items()}
    return lambda handler: handler.answer(status, body, {"Content-Type": "application/json", **names})


def cut(handler):
    """The connection ends before a byte of the answer."""
    handler.close_connection = True


def cut_midway(handler):
    """The connection ends in the middle of the answer."""
    handler.send_response(200)
    handler.send_header("Content-Type", "application/json")
    handler.send_header("Content-Length", "1000")
    handler.end_headers()
    handler.wfile.write(b'{"id": "c1", "choices": [')
    handler.close_connection = True


class ChatServer(ThreadingHTTPServer):
    """Asks ``script(prompt, tries)`` how to answer; ``prompt`` is the last message, ``tries`` counts from 0."""

    daemon_threads = True
    request_queue_size = 128  # connections that may wait at a time

    def __init__(self, script, models):
        super().__init__(("127.0.0.1", 0), Handler)
        self.script, self.models = script, models
        self.bodies, self.keys, self.tries = [], [], Counter()
        self.lock = threading.Lock()
        self.asked = threading.Event()  # a stall has begun
        self.released = threading.Event()  # ends every stall
        self.active = self.most_active = 0

    @property
    def url(self):
        return f"http://127.0.0.1:{self.server_port}/v1"

    def stall(self, handler):
        """No answer at all, until the test is over."""
        self.asked.set()
        self.released.wait(30)
        handler.close_connection = True

    def handle_error(self, request, client_address):
        """Clients that went away are part of the tests."""


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def log_message(self, *_):
        pass

    def do_GET(self):
        self.server.keys.append(self.headers.get("Authorization"))
        models = self.server.models
        if callable(models):
            models(self)
        else:
            cards = [{"id": name, "object": "model", **more} for name, more in models.items()]
            raw(json.dumps({"object": "list", "data": cards}))(self)

    def do_POST(self):
        server = self.server
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        prompt = body["messages"][-1]["content"] if "messages" in body else body["prompt"]
        key = json.dumps(prompt)
        with server.lock:
            tries = server.tries[key]
            server.tries[key] += 1
            server.bodies.append(body)
            server.keys.append(self.headers.get("Authorization"))
            server.active += 1
            server.most_active = max(server.most_active, server.active)
        try:
            answer = server.script(prompt, tries)
        finally:
            with server.lock:
                server.active -= 1
        answer(self)

    def answer(self, status, body, headers):
        data = body.encode()
        self.send_response(status)
        for name, value in headers.items():
            self.send_header(name, value)
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)


@contextmanager
def chat_server(script=lambda prompt, tries: say("<think>ok</think><answer>1</answer>"), models=None):
    """A running server."""
    server = ChatServer(script, {"tiny": {}} if models is None else models)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True)
    thread.start()
    try:
        yield server
    finally:
        server.released.set()
        server.shutdown()
        server.server_close()
        thread.join(10)
