"""Worker processes by themselves, without environments: how they start, are reached, end, and what is left of them."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from envlanes.kinds.process.kind import ProcessKind, unavailable
from envlanes.workers.handle import Message
from support import scripts
from support.leftovers import processes, titled, until
from support.worker_handles import ask, end_of, say, up, wait

pytestmark = pytest.mark.skipif(bool(unavailable()), reason=unavailable() or "available")


@pytest.fixture
def kind() -> Iterator[ProcessKind]:
    """One whose workers do what a message says."""
    made = ProcessKind("forkserver", ["support.bare_worker"])
    yield made
    made.close()


@pytest.fixture(params=["forkserver", "spawn"])
def any_kind(request: pytest.FixtureRequest) -> Iterator[ProcessKind]:
    """One of each start method, with the real worker."""
    made = ProcessKind(request.param, [])
    yield made
    made.close()


def only(prefix: str) -> int:
    """The process with such a title; it may take it after its first answer."""
    assert until(lambda: len(titled(prefix)) == 1)
    return titled(prefix)[0]


# Starting


def test_a_worker_says_hello_and_answers(kind: ProcessKind) -> None:
    handle = kind.start("worker 0")
    assert (handle.is_up, handle.pid, handle.where) == (False, None, "")
    assert wait(handle, lambda: handle.is_up) is None
    assert handle.pid is not None and handle.where == f"pid {handle.pid}"
    assert ask(handle, say("echo", 7, b"text", b"")) == [b"echo", b"7", b"text", b""]
    assert ask(handle, say("echo", 8)) == [b"echo", b"8"]
    assert handle.moved > 0
    ending = handle.end()
    assert (ending.where, ending.status) == (f"pid {handle.pid}", -signal.SIGKILL)


# Messages


def test_a_message_that_nobody_reads_waits_here(kind: ProcessKind) -> None:
    handle = up(kind)
    os.kill(handle.pid or 0, signal.SIGSTOP)
    handle.send(say("echo", 1, bytes(10 << 20)))
    assert handle.unsent and handle.receive() is None
    os.kill(handle.pid or 0, signal.SIGCONT)
    assert wait(handle) is not None and not handle.unsent
    handle.end()


def test_the_position_is_seen_while_the_worker_works_and_after_its_end(kind: ProcessKind) -> None:
    handle = up(kind)
    begin = time.monotonic()
    handle.send(say("sleep", 42))
    assert until(lambda: handle.position() is not None and handle.position()[:2] == (42, 2))  # type: ignore[index]
    position = handle.position()
    assert position is not None and begin <= position.since <= time.monotonic()
    assert handle.end().position == position


# Ends


def test_a_worker_that_hangs_tells_its_stacks(kind: ProcessKind) -> None:
    handle = up(kind)
    assert ask(handle, say("wait_in_thread"))
    handle.send(say("sleep", 2))
    assert until(lambda: handle.position() is not None and handle.position()[0] == 2)  # type: ignore[index]
    stacks = handle.stacks()
    assert "in _sleep" in stacks and stacks.count("hread 0x") == 2
    assert handle.stacks() == stacks
    handle.end()
    assert handle.stacks() == ""


@pytest.mark.parametrize(
    ("message", "says", "status"),
    [
        (say("exit", 1, b"3"), "exited with code 3", 3),
        (say("leave", 1, b"4"), "exited with code 4", 4),
        (say("raise"), "exited with code 1", 1),
        (say("die", 1, b"11"), "was killed by SIGSEGV", -11),
        (say("die", 1, b"15"), "was killed by SIGTERM", -15),
        (say("die", 1, b"9"), "was killed by SIGKILL", -9),
    ],
)
def test_how_a_worker_ended_is_told(kind: ProcessKind, message: Message, says: str, status: int) -> None:
    handle = up(kind)
    handle.send(message)
    ending = end_of(handle)
    assert (ending.describe(), ending.status, ending.where) == (says, status, f"pid {handle.pid}")
    assert ending.position is not None and ending.position[:2] == (1, 2)
    assert handle.end() is ending
    other = up(kind, "worker 1")
    assert ask(other, say("echo", 1))
    other.end()


def test_the_real_worker_exits_when_asked(any_kind: ProcessKind) -> None:
    handle = up(any_kind)
    assert handle.ask_to_exit()
    assert end_of(handle).status == 0


def test_one_that_ignores_signals_is_ended(kind: ProcessKind) -> None:
    handle = up(kind)
    ask(handle, say("ignore", 1, b"%d" % signal.SIGTERM))
    handle.send(say("sleep", 2))
    assert handle.end().status == -signal.SIGKILL


# The supervisor


@pytest.mark.cold
def test_workers_that_end_with_their_supervisor_say_so(any_kind: ProcessKind) -> None:
    handle = up(any_kind)
    os.kill(only("envlanes supervisor"), signal.SIGKILL)
    ending = end_of(handle)
    assert ending.describe() == "ended with its supervisor process, which was killed by SIGKILL"
    assert (ending.where, ending.status, ending.position) == (f"pid {handle.pid}", None, None)
    again = up(any_kind)  # under a new one
    assert again.end().status == -signal.SIGKILL


@pytest.mark.parametrize("victims", [["main"], ["main", "supervisor"], ["supervisor", "main"]])
@pytest.mark.cold
def test_nothing_is_left_of_a_main_process_that_was_killed(tmp_path: Path, victims: list[str]) -> None:
    body = """
        import signal
        from envlanes.kinds.process.kind import ProcessKind
        from support.worker_handles import ask, asked, say, up
        kind = ProcessKind("forkserver", ["support.bare_worker"])
        handle = up(kind)
        ask(handle, say("start_program", 1, b"hidden"))
        print(kind._launcher._process.pid, flush=True)
        signal.pause()
    """
    main = scripts.start(scripts.write(tmp_path, body, head=""))
    try:
        assert main.stdout is not None
        pids = {"main": main.pid, "supervisor": int(main.stdout.readline())}
        assert until(lambda: len(processes()) == 5)  # main, supervisor, watcher, worker, program
        for victim in victims:
            os.kill(pids[victim], signal.SIGKILL)
    finally:
        main.kill()
        main.communicate()
    assert until(lambda: not processes())


@pytest.mark.cold
def test_the_watcher_may_be_killed(kind: ProcessKind) -> None:
    handle = up(kind)
    watcher = only("envlanes watcher")
    os.kill(watcher, signal.SIGKILL)
    assert until(lambda: watcher not in processes())
    assert ask(handle, say("echo")) and handle.end().status == -signal.SIGKILL


# Odd systems


@pytest.mark.cold
def test_descriptors_of_any_number_can_be_used() -> None:
    import resource

    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if hard < 3000:
        pytest.skip("there are not that many")
    resource.setrlimit(resource.RLIMIT_NOFILE, (3000, hard))
    many: list[int] = []
    try:
        while len(many) < 1200:
            many.append(os.open(os.devnull, os.O_RDONLY))
        made = ProcessKind("forkserver", ["support.bare_worker"])
        handle = up(made)
        assert ask(handle, say("echo"))
        assert handle.end().status == -signal.SIGKILL
        made.close()
    finally:
        for descriptor in many:
            os.close(descriptor)
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
