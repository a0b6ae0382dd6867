"""Kinds of workers by themselves: how workers start, are reached and end, and what is left of them."""

from __future__ import annotations

import itertools
import multiprocessing
import os
import signal
import sys
import textwrap
import threading
import time
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from pathlib import Path

import numpy as np
import pytest

from envlanes.episode.host import EnvHost, ResetOrder
from envlanes.episode.journal import Change
from envlanes.episode.spec import EnvSpec
from envlanes.kinds import executor
from envlanes.kinds.executor import ExecutorKind
from envlanes.kinds.process.kind import ProcessKind, unavailable
from envlanes.ragen.turn import TEXT, Turn
from envlanes.workers import codec
from envlanes.workers.handle import WorkerGone
from envlanes.workers.orders import Call, Play, Rebuild, Reset
from envlanes.workers.server import _worker_init, _worker_step_single_env
from support import scripts
from support.leftovers import is_over, titled, until
from support.worker_handles import PATIENCE, asked, up, wait

FORK, SPAWN = "forkserver", "spawn"
numbers = itertools.count(1)


def puppet():
    """A class that does what it is told; it travels by value, so that workers need not import this file."""

    class Puppet:
        def __init__(self, config=None):
            self.config = config

        def reset(self, seed=None, mode=None):
            return ""

        def echo(self, value):
            return value

        def exit(self, code):
            os._exit(code)

        def die(self, number):
            os.kill(os.getpid(), number)

        def ignore(self, number):
            signal.signal(number, signal.SIG_IGN)

        def sleep(self):
            time.sleep(1000)

        def stop_in_mid_reply(self):
            """A large reply, half of which is written when the process stops."""
            main = threading.get_ident()

            def stop():
                while sys._current_frames()[main].f_code.co_name != "flush":
                    pass
                os.kill(os.getpid(), signal.SIGSTOP)

            threading.Thread(target=stop).start()
            return np.zeros(50_000_000, np.uint8)

        def fork_a_sleeper(self):
            """A child that holds whatever it inherited."""
            pid = os.fork()
            if not pid:
                signal.pause()
            return pid

        def start_a_shell(self):
            """A child of C code, which lets it have all inheritable descriptors."""
            return os.posix_spawn("/bin/sleep", ["sleep", "1000"], dict(os.environ))

        def leave_a_thread(self):
            threading.Thread(target=time.sleep, args=(1000,), name="left behind").start()

        def close(self):
            if self.config:
                with open(self.config, "w") as file:
                    file.write("closed")

    Puppet.__module__ = "__main__"
    return Puppet


def load(config=None):
    """The request that makes the puppet."""
    return codec.pack_request(next(numbers), 1, Rebuild.of([EnvSpec.of(puppet(), config, game=TEXT)], []))


def call(*deeds):
    """The request that has the puppet do things, each a name with its arguments."""
    deeds = [deed if isinstance(deed, tuple) else (deed,) for deed in deeds]
    return codec.pack_request(next(numbers), 1, Call([(0, Change(name, given)) for name, *given in deeds]))


def answer(handle):
    """Wait for a reply; what the puppet gave."""
    [outcome] = codec.unpack_reply(wait(handle)).outcomes
    return outcome.value


def ask(handle, *deed):
    """The results of the puppet."""
    handle.send(call(deed))
    return answer(handle)


def gone(handle):
    """Wait until the worker is seen to be gone; its status."""
    with pytest.raises(WorkerGone):
        while True:
            wait(handle)
    return handle.end().status


def works(handle, message, item):
    """Whether the worker works on that item of a request."""
    position = handle.position()
    return position is not None and position[:2] == (codec.number_of(message), item)


def only(prefix):
    """The process with such a title; it may take it after its first answer."""
    assert until(lambda: len(titled(prefix)) == 1)
    return titled(prefix)[0]


def made(kind, method):
    return ProcessKind(method, []) if kind is ProcessKind else ExecutorKind(method)


@pytest.fixture(params=itertools.product((ProcessKind, ExecutorKind), (FORK, SPAWN)))
def kind(request):
    if request.param[0] is ProcessKind and unavailable():
        pytest.skip(unavailable())
    kind = made(*request.param)
    yield kind
    kind.close()


def of(*kinds):
    return pytest.mark.parametrize("kind", kinds, indirect=True)


by_fork = of((ProcessKind, FORK), (ExecutorKind, FORK))  # where a worker's start makes no difference
by_process, by_executor = of((ProcessKind, FORK)), of((ExecutorKind, FORK))
by_executors = of((ExecutorKind, FORK), (ExecutorKind, SPAWN))


@pytest.fixture
def handle(kind):
    """A worker with a puppet."""
    handle = asked(kind, load())
    assert answer(handle) is None
    yield handle
    handle.end()


def test_a_worker_says_hello_and_answers(kind):
    handle = kind.start("worker 7")
    assert wait(handle, lambda: handle.is_up) is None
    assert until(lambda: handle.pid in titled("envlanes worker"))
    handle.send(load())
    assert answer(handle) is None
    assert ask(handle, "echo", "hello") == "hello"
    ending = handle.end()
    assert ending.where == handle.where == f"pid {handle.pid}" and ending.status == -signal.SIGKILL


@by_fork
def test_the_position_is_that_of_the_item_it_works_on(handle):
    message, before = call(("echo", 1), "sleep"), time.monotonic()
    handle.send(message)
    assert until(lambda: works(handle, message, 1))
    position = handle.position()
    assert position is not None and before < position.since < time.monotonic()
    ending = handle.end()
    assert (ending.status, ending.position) == (-signal.SIGKILL, position)


@by_fork
@pytest.mark.parametrize(
    ("deed", "status"), [(("exit", 3), 3), *((("die", number), -number) for number in (11, 15, 9))], ids=str
)
def test_a_worker_that_ends_gives_its_status_after_all_earlier_replies(handle, deed, status, kind):
    last = call(("echo", 3), deed)
    for message in (call(("echo", 1)), call(("echo", 2)), last):
        handle.send(message)
    assert [answer(handle), answer(handle)] == [1, 2]
    assert gone(handle) == status
    ending = handle.end()
    assert ending.where == f"pid {handle.pid}" and ending.position[:2] == (codec.number_of(last), 1)
    other = asked(kind, load(), "worker 1")
    assert answer(other) is None
    other.end()


@by_fork
def test_a_request_that_a_dying_worker_has_not_read(handle):
    large = call(("echo", np.zeros(20_000_000, np.uint8)))
    handle.send(call(("exit", 1)))
    with pytest.raises(WorkerGone):
        handle.send(large)
        wait(handle)
    assert handle.end().status == 1


@by_process
def test_a_message_that_nobody_reads_waits_here(handle):
    os.kill(handle.pid, signal.SIGSTOP)
    handle.send(call(("echo", bytes(10 << 20))))
    assert handle.unsent and handle.receive() is None
    os.kill(handle.pid, signal.SIGCONT)
    assert len(answer(handle)) == 10 << 20 and not handle.unsent


def test_a_worker_that_is_asked_to_exit_closes_its_environments(kind, tmp_path):
    handle = asked(kind, load(str(tmp_path / "closed")))
    answer(handle)
    ask(handle, "leave_a_thread")
    assert handle.ask_to_exit()
    assert gone(handle) == 0
    assert (tmp_path / "closed").read_text() == "closed"


@by_process
def test_a_worker_that_hangs_and_ignores_signals_shows_its_stacks_and_is_ended(handle):
    ask(handle, "leave_a_thread")
    ask(handle, "ignore", signal.SIGTERM)
    message = call("sleep")
    handle.send(message)
    assert until(lambda: works(handle, message, 0))
    stacks = handle.stacks()
    assert "in sleep" in stacks and stacks.count("hread 0x") == 2
    assert handle.end().status == -signal.SIGKILL
    assert handle.stacks() == ""


@by_executor
@pytest.mark.parametrize(("child", "is_replying"), [("fork_a_sleeper", True), ("start_a_shell", False)])
def test_a_worker_dies_and_leaves_a_child(handle, child, is_replying):
    """The child is not found by this kind; but that it lives keeps nobody from learning that its parent does not."""
    assert handle.pid is not None
    orphan = ask(handle, child)
    handle.send(call("stop_in_mid_reply" if is_replying else "sleep"))
    try:
        assert not is_replying or until(lambda: is_stopped(handle.pid))
        os.kill(handle.pid, signal.SIGKILL)
        assert gone(handle) == -signal.SIGKILL
    finally:
        os.kill(orphan, signal.SIGKILL)


def test_a_stopped_fork_server_costs_a_bounded_wait(monkeypatch):
    kind = ExecutorKind("forkserver")
    monkeypatch.setattr(executor, "_PATIENCE", 0.1)
    handle = asked(kind, load())
    answer(handle)
    assert handle.pid is not None
    server = parent_of(handle.pid)
    os.kill(server, signal.SIGSTOP)
    try:
        other = asked(kind, load(), "worker 1")
        other.send(call(("echo", 1)))
        assert not other.is_up
        assert "still being started" in other.end().describe()
        handle.end()
    finally:
        os.kill(server, signal.SIGCONT)


def test_a_forked_child_lets_go_and_harms_nobody(handle, kind):
    pid = os.fork()
    if not pid:
        code = 1
        try:
            assert handle.fileno() < 0
            kind.forget_in_child()
            code = 0
        finally:
            os._exit(code)
    assert os.waitpid(pid, 0)[1] == 0
    assert ask(handle, "echo", 1) == 1


HEAD = """
import os, select, signal, sys, threading, time
mark = os.environ["RAGEN_TESTED_BY"]
from test_kinds import *
os.environ["RAGEN_TESTED_BY"] = mark  # what it starts is this test's

def main():
    kind = {kind}
    handle = asked(kind, load({closed!r}))
    answer(handle)
    ask(handle, "echo", 1)
    print(handle.pid, flush=True)
"""


@pytest.fixture
def program(request, kind, tmp_path):
    """A script that has a worker of the same kind, with a guard around its main part or without one."""
    which, method = request.node.callspec.params["kind"]
    head = HEAD.format(kind=f"made({which.__name__}, {method!r})", closed=str(tmp_path / "closed"))

    def write(body, guard='if __name__ == "__main__":'):
        return scripts.write(tmp_path, textwrap.indent(textwrap.dedent(body), "    ") + f"\n{guard}\n    main()", head)

    return write


@by_executors
def test_a_main_script_without_a_guard_is_told_to_have_one(program):
    process = scripts.start(program("", "if True:"))
    _, err = process.communicate(timeout=60)
    assert process.returncode == 1
    assert "ConfigError" in err and "__name__" in err


@by_executor
def test_the_fork_server_dies(program):
    body = """
    server = parent_of(handle.pid)
    os.kill(server, signal.SIGKILL)
    try:
        handle.send(call("sleep"))
        while True:
            wait(handle)
    except WorkerGone:
        print(handle.end().status, until(lambda: is_over(handle.pid) and is_over(server)))
    handle = asked(kind, load())
    print(answer(handle))
    """
    assert scripts.run(program(body)).split()[1:] == ["None", "True", "None"]


@by_executors
@pytest.mark.parametrize("last", ["pass", "handle.send(call('sleep'))\nos.kill(os.getpid(), signal.SIGKILL)"])
def test_a_worker_ends_with_its_program_however_that_does(program, last):
    process = scripts.start(program(f"ask(handle, 'leave_a_thread')\n{last}"))
    out, _ = process.communicate(timeout=60)
    assert process.returncode == (0 if last == "pass" else -signal.SIGKILL)
    assert until(lambda: is_over(int(out)))


def is_stopped(pid):
    return "\nState:\tT" in Path(f"/proc/{pid}/status").read_text()


def parent_of(pid):
    status = Path(f"/proc/{pid}/status").read_text()
    return int(status.partition("\nPPid:\t")[2].split()[0])


# The supervisor of processes


@of((ProcessKind, FORK), (ProcessKind, SPAWN))
@pytest.mark.cold
def test_workers_that_end_with_their_supervisor_say_so(kind):
    handle = up(kind)
    os.kill(only("envlanes supervisor"), signal.SIGKILL)
    assert gone(handle) is None
    ending = handle.end()
    assert "ended with its supervisor process" in ending.describe()
    assert (ending.where, ending.position) == (f"pid {handle.pid}", None)
    assert up(kind).end().status == -signal.SIGKILL  # under a new one


@by_process
@pytest.mark.cold
def test_descriptors_of_any_number_can_be_used(kind):
    import resource

    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if hard < 3000:
        pytest.skip("there are not that many")
    resource.setrlimit(resource.RLIMIT_NOFILE, (3000, hard))
    many = [os.open(os.devnull, os.O_RDONLY) for _ in range(1200)]
    try:
        handle = asked(kind, load())
        assert answer(handle) is None and ask(handle, "echo", 1) == 1
        handle.end()
        kind.close()
    finally:
        for descriptor in many:
            os.close(descriptor)
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


# The initializer and the call by themselves, in a pool that is not ours


@pytest.mark.parametrize("method", [FORK, SPAWN])
@pytest.mark.parametrize("fault", ["nothing", "raises"])
def test_an_initializer_builds_the_environments_that_it_is_given(method, fault):
    from support.faulty_envs import FaultConfig, Faulty  # which not every system can import

    specs = [EnvSpec.of(Faulty, FaultConfig(fault, "init"), env_id, tag="Walk", game=TEXT) for env_id in range(2)]
    orders = [Rebuild.of(specs, []), Reset([ResetOrder(env_id, 7 + env_id) for env_id in range(2)])]
    requests = [codec.portable(codec.pack_request(next(numbers), 1, order)) for order in orders]
    context = multiprocessing.get_context(method)
    with ProcessPoolExecutor(1, context, initializer=_worker_init, initargs=(requests,)) as pool:
        turns = Play([(env_id, Turn(("Right",), 9)) for env_id in range(2)])
        reply = pool.submit(_worker_step_single_env, codec.portable(codec.pack_request(next(numbers), 1, turns)))
        if fault == "raises":
            with pytest.raises(BrokenProcessPool):
                reply.result(PATIENCE)
            return
        shown = [outcome.value.observation for outcome in codec.unpack_reply(reply.result(PATIENCE) or []).outcomes]
    host = EnvHost()
    host.load(specs)
    host.reset([ResetOrder(env_id, 7 + env_id) for env_id in range(2)])
    assert shown == [outcome.value.observation for outcome in host.play(turns.items)]
