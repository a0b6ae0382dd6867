"""Worker processes by themselves, without environments: how they start, are reached, end, and what is left of them."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import psutil
import pytest

from envlanes.errors import LaneStartError
from envlanes.kinds.process import kind as process_kind
from envlanes.kinds.process import supervisor
from envlanes.kinds.process.kind import ProcessKind, unavailable
from envlanes.workers.handle import Message, WorkerGone
from support import scripts
from support.leftovers import descriptors, is_over, processes, titled, until
from support.worker_handles import ask, asked, end_of, say, up, wait

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


def test_the_first_message_may_be_sent_before_the_worker_is_up(kind: ProcessKind) -> None:
    handle = asked(kind, say("echo", 3, b"first"))
    reply = wait(handle)
    assert reply is not None and bytes(reply[2]) == b"first"
    assert handle.is_up
    handle.end()


def test_several_workers_live_side_by_side(kind: ProcessKind) -> None:
    handles = [asked(kind, say("echo", number), f"worker {number}") for number in range(5)]
    replies = [wait(handle) for handle in handles]
    assert [bytes(reply[1]) for reply in replies if reply] == [b"%d" % number for number in range(5)]
    handles[0].end()
    assert ask(handles[1], say("echo", 9)) == [b"echo", b"9"]
    for handle in handles:
        handle.end()
    assert not titled("envlanes worker")


# Messages


@pytest.mark.parametrize("size", [1, 1 << 18, 30 << 20])
def test_arrays_of_any_size_go_both_ways(kind: ProcessKind, size: int) -> None:
    handle = up(kind)
    array = np.arange(size, dtype=np.uint8)
    handle.send(say("echo", 1, array.data, b"end"))
    reply = wait(handle)
    assert reply is not None and not handle.unsent
    assert np.array_equal(np.frombuffer(reply[2], np.uint8), array) and bytes(reply[3]) == b"end"
    assert handle.moved > 2 * size
    handle.end()


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


def test_one_that_is_frozen_has_no_stacks_and_is_not_waited_for(kind: ProcessKind) -> None:
    handle = up(kind)
    assert handle.pid is not None
    os.kill(handle.pid, signal.SIGSTOP)
    assert handle.stacks() == ""
    assert psutil.Process(handle.pid).status() == psutil.STATUS_STOPPED
    assert handle.end().status == -signal.SIGKILL


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


def test_replies_that_came_before_the_end_are_not_lost(kind: ProcessKind) -> None:
    handle = asked(kind, say("echo", 5, bytes(1000)))
    pid = only("envlanes worker")
    assert until(lambda: (handle.position() or (0, 0))[:2] == (5, 3))
    os.kill(pid, signal.SIGKILL)
    assert until(lambda: is_over(pid))
    reply = wait(handle)
    assert reply is not None and bytes(reply[1]) == b"5"
    assert end_of(handle).status == -signal.SIGKILL


def test_sending_to_one_that_has_ended_says_so(kind: ProcessKind) -> None:
    handle = kind.start("worker 0")
    pid = only("envlanes worker")
    os.kill(pid, signal.SIGKILL)
    assert until(lambda: is_over(pid))
    with pytest.raises(WorkerGone):
        for _ in range(2):
            handle.send(say("echo", 1))
    assert handle.end().status == -signal.SIGKILL
    with pytest.raises(WorkerGone):
        handle.receive()


@pytest.mark.parametrize("message", [None, say("echo")])
def test_one_that_is_asked_to_exit_does(kind: ProcessKind, message: Message | None) -> None:
    handle = up(kind)
    if message is not None:
        ask(handle, message)
    assert handle.ask_to_exit()
    assert end_of(handle).status == 0


def test_the_real_worker_exits_when_asked(any_kind: ProcessKind) -> None:
    handle = up(any_kind)
    assert handle.ask_to_exit()
    assert end_of(handle).status == 0


def test_one_that_is_not_up_or_busy_is_not_asked_to_exit(kind: ProcessKind) -> None:
    handle = kind.start("worker 0")
    assert not handle.ask_to_exit()
    wait(handle, lambda: handle.is_up)
    os.kill(handle.pid or 0, signal.SIGSTOP)
    handle.send(say("echo", 1, bytes(10 << 20)))
    assert not handle.ask_to_exit()
    handle.end()


def test_one_that_ignores_signals_is_ended(kind: ProcessKind) -> None:
    handle = up(kind)
    ask(handle, say("ignore", 1, b"%d" % signal.SIGTERM))
    handle.send(say("sleep", 2))
    assert handle.end().status == -signal.SIGKILL


@pytest.mark.cold
def test_all_end_with_the_kind_though_nobody_has_ended_them() -> None:
    made = ProcessKind("forkserver", ["support.bare_worker"])
    handles = [up(made) for _ in range(2)]
    made.close()
    assert not processes()
    for handle in handles:
        with pytest.raises(WorkerGone):
            wait(handle)
        assert "supervisor" in handle.end().describe()
    made.close()


# What workers leave


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


@pytest.mark.cold
def test_a_worker_whose_supervisor_dies_first_could_not_be_started(kind: ProcessKind) -> None:
    os.kill(only("envlanes supervisor"), signal.SIGSTOP)
    handle = asked(kind, say("echo"))
    os.kill(only("envlanes supervisor"), signal.SIGKILL)
    ending = end_of(handle)
    assert ending.describe() == "could not be started (the supervisor process was killed by SIGKILL)"
    assert (ending.where, ending.status) == ("", None)


@pytest.mark.cold
def test_a_supervisor_that_never_came_up_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(supervisor, "command_line", lambda module, arguments: ["/bin/sh", "-c", "exit 7"])
    made = ProcessKind("forkserver", [])
    handle = asked(made, say("echo"))
    ending = end_of(handle)
    assert ending.describe() == "could not be started (the supervisor process exited with code 7)"
    assert (ending.where, ending.status) == ("", None)
    made.close()


@pytest.mark.cold
def test_a_supervisor_that_cannot_be_started_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(supervisor, "command_line", lambda module, arguments: ["/no/such/program"])
    before = descriptors()
    with pytest.raises(LaneStartError, match=r"cannot start the supervisor process \(.*No such file"):
        ProcessKind("forkserver", [])
    assert descriptors() == before


@pytest.mark.cold
def test_a_supervisor_that_does_not_answer_is_given_up(kind: ProcessKind, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(process_kind, "END_TIMEOUT", 0.2)
    handles = [up(kind), up(kind)]
    os.kill(only("envlanes supervisor"), signal.SIGSTOP)
    for handle in handles:
        says = "ended with its supervisor process, which did not answer within 0.2 s and was killed"
        assert handle.end().describe() == says
    assert until(lambda: not any(handle.pid in processes() for handle in handles))


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


# Forks of the main process


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
