"""What environments share: one resource a process, one temporary folder, one cache a machine."""

from __future__ import annotations

import multiprocessing
import os
import signal
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from envlanes import temporary
from envlanes.temporary import remove_tree, temporary_folder
from ragen.cache import machine_cache, machine_lock
from ragen.env import resources
from ragen.env.resources import worker_resource
from ragen.errors import CacheError, ResourceError


@pytest.fixture(autouse=True)
def nothing_held() -> Iterator[None]:
    """Each test begins and ends without resources."""
    resources.close_resources()
    yield
    assert not resources._shared


class Built:
    """Counts what is built and closed."""

    def __init__(self) -> None:
        self.log: list[str] = []

    def build(self) -> object:
        self.log.append("build")
        return object()

    def close(self, _: object) -> None:
        self.log.append("close")


def test_the_first_builds_all_share_and_the_last_closes() -> None:
    built = Built()
    leases = [worker_resource("x", built.build, built.close) for _ in range(3)]
    assert len({id(lease.value) for lease in leases}) == 1
    for lease in leases:
        assert built.log == ["build"]
        lease.release()
        lease.release()
    assert built.log == ["build", "close"]
    with worker_resource("x", built.build, built.close):
        pass
    assert built.log == ["build", "close"] * 2


def test_a_discarded_resource_is_closed_and_the_next_is_built_anew() -> None:
    built = Built()
    broken, bystander = (worker_resource("x", built.build, built.close) for _ in range(2))
    broken.discard()
    assert built.log == ["build", "close"]
    for lease in (broken, bystander):
        with pytest.raises(ResourceError, match="'x' was closed or discarded; acquire it again"):
            lease.value  # noqa: B018
    with worker_resource("x", built.build, built.close) as new:
        bystander.release()
        broken.release()
        assert new.value and built.log == ["build", "close", "build"]


def test_a_resource_that_cannot_be_closed_is_discarded_all_the_same() -> None:
    def close(_: object) -> None:
        raise OSError("is gone already")

    worker_resource("x", object, close).discard()
    with worker_resource("x", object) as new:
        assert new.value


def test_a_failed_build_is_raised_and_tried_again() -> None:
    outcomes = [OSError("no browser"), "browser"]

    def build() -> str:
        outcome = outcomes.pop(0)
        if isinstance(outcome, Exception):
            raise outcome
        return outcome

    with pytest.raises(OSError, match="no browser"):
        worker_resource("x", build)
    with worker_resource("x", build) as lease:
        assert lease.value == "browser"


def test_threads_wait_for_one_build() -> None:
    built, begun, go_on = Built(), threading.Event(), threading.Event()
    leases: list[resources.Lease[object]] = []

    def build() -> object:
        begun.set()
        assert go_on.wait(60)
        return built.build()

    threads = [
        threading.Thread(target=lambda: leases.append(worker_resource("x", build, built.close))) for _ in range(4)
    ]
    for thread in threads:
        thread.start()
    assert begun.wait(60)
    go_on.set()
    for thread in threads:
        thread.join()
    assert len({id(lease.value) for lease in leases}) == 1 and built.log == ["build"]
    for lease in leases:
        lease.release()
    assert built.log == ["build", "close"]


def test_what_is_still_held_is_closed_at_the_end_of_the_program_the_latest_first() -> None:
    program = (
        "from envlanes.temporary import temporary_folder\n"
        "from ragen.env.resources import worker_resource\n"
        "for key in 'ab':\n"
        "    worker_resource(key, lambda: key, lambda value: print('closed', value))\n"
        "print(temporary_folder())\n"
    )
    folder, *closed = subprocess.check_output([sys.executable, "-c", program], text=True).splitlines()
    assert closed == ["closed b", "closed a"]
    assert not os.path.exists(folder)


def test_a_fork_closes_nothing_of_its_parent() -> None:
    built = Built()
    lease = worker_resource("x", built.build, built.close)
    folder = temporary_folder()
    process = multiprocessing.get_context("fork").Process(target=temporary._remove_own)
    process.start()
    process.join()
    assert process.exitcode == 0 and folder.is_dir() and lease.value
    lease.release()


def test_a_tree_that_forbids_its_removal_is_removed_and_links_are_not_followed(tmp_path: Path) -> None:
    outside = tmp_path / "outside"
    outside.mkdir(mode=0o755)
    (outside / "file").touch()
    tree = tmp_path / "tree"
    (tree / "locked" / "inner").mkdir(parents=True)
    (tree / "locked" / "inner" / "file").touch()
    (tree / "link").symlink_to(outside)
    (tree / "locked" / "inner").chmod(0)
    (tree / "locked").chmod(0)
    remove_tree(tree)
    remove_tree(tree)
    assert not tree.exists() and (outside / "file").exists() and outside.stat().st_mode & 0o777 == 0o755


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("RAGEN_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


def write(folder: Path) -> None:
    (folder / "index").write_text("whole")


@pytest.mark.parametrize("what", ["cache", "shelf"])
def test_a_cache_that_others_may_write_to_is_not_trusted(tmp_path, monkeypatch, what):
    monkeypatch.setenv("RAGEN_CACHE", str(tmp_path))
    planted = machine_cache("levels", 1, write)
    open_to_all = {"cache": tmp_path, "shelf": planted.parent}[what]
    open_to_all.chmod(0o777)
    try:
        own = machine_cache("levels", 1, write)
        assert own != planted and machine_cache("levels", 1, lambda _: pytest.fail("built twice")) == own
        assert own.parent.stat().st_mode & 0o777 == own.parent.parent.stat().st_mode & 0o777 == 0o700
        own.parent.chmod(0o777)
        with pytest.raises(CacheError):
            machine_cache("levels", 1, write)
    finally:
        open_to_all.chmod(0o700)


def test_a_cache_is_built_once_and_another_key_is_another_folder(cache: Path) -> None:
    folder = machine_cache("alfworld", {"scene": 3, "version": [1, 2]}, write)
    assert folder.is_relative_to(cache / "alfworld") and (folder / "index").read_text() == "whole"
    assert machine_cache("alfworld", {"version": [1, 2], "scene": 3}, lambda _: pytest.fail("built twice")) == folder
    assert machine_cache("alfworld", {"scene": 4, "version": [1, 2]}, write) != folder


def fail(folder: Path) -> None:
    write(folder)
    raise SystemExit(7)


def build_and_be_killed(folder: Path) -> None:
    write(folder)
    os.kill(os.getpid(), signal.SIGKILL)


@pytest.mark.parametrize(("build", "code"), [(fail, 7), (build_and_be_killed, -signal.SIGKILL)])
def test_a_build_that_ends_half_way_leaves_nothing_and_is_tried_again(cache: Path, build, code) -> None:
    process = multiprocessing.get_context("fork").Process(target=machine_cache, args=("levels", 1, build))
    process.start()
    process.join()
    assert process.exitcode == code
    folder = machine_cache("levels", 1, write)
    assert sorted(path.name for path in folder.parent.iterdir()) == [folder.name, f"{folder.name}.lock"]
    assert (folder / "index").read_text() == "whole"


def log_and_write(folder: Path) -> None:
    with open(os.environ["BUILD_LOG"], "a") as file:
        file.write("built\n")
    write(folder)


def test_many_processes_build_once(cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("BUILD_LOG", str(tmp_path / "log"))
    context = multiprocessing.get_context("fork")
    processes = [context.Process(target=machine_cache, args=("levels", 1, log_and_write)) for _ in range(6)]
    for process in processes:
        process.start()
    for process in processes:
        process.join()
    assert {process.exitcode for process in processes} == {0}
    assert (tmp_path / "log").read_text() == "built\n"


def test_a_lock_says_which_process_holds_it_and_is_free_when_that_is_killed(tmp_path: Path) -> None:
    path = tmp_path / "a.lock"
    program = (
        "from pathlib import Path\n"
        "from ragen.cache import machine_lock\n"
        f"with machine_lock(Path({str(path)!r})):\n"
        "    print('held', flush=True)\n"
        "    input()\n"
    )
    holder = subprocess.Popen([sys.executable, "-c", program], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    try:
        assert holder.stdout is not None and holder.stdout.readline() == "held\n"
        with pytest.raises(CacheError, match=f"process {holder.pid} has held"), machine_lock(path, timeout=0.0):
            pass
    finally:
        holder.kill()
        holder.communicate()
    with machine_lock(path, timeout=60.0):
        assert path.read_text() == str(os.getpid())


@pytest.mark.parametrize("name", ["../x", "", "a/b", ".x"])
def test_a_name_that_is_no_folder_is_refused(cache: Path, name: str) -> None:
    with pytest.raises(CacheError, match="not a valid folder name"):
        machine_cache(name, 1, write)
    assert not cache.exists()


def test_a_cache_folder_that_cannot_be_made_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").touch()
    monkeypatch.setenv("RAGEN_CACHE", str(tmp_path / "file"))
    with pytest.raises(CacheError, match=r"no cache can be created in .*/file; set RAGEN_CACHE"):
        machine_cache("x", 1, write)


def test_without_a_variable_the_cache_is_where_the_system_has_caches(tmp_path: Path, monkeypatch) -> None:
    monkeypatch.delenv("RAGEN_CACHE", raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert machine_cache("x", 1, write).parent == tmp_path / "ragen" / "x"
    (tmp_path / "file").touch()
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    assert machine_cache("x", 1, write).parent == tmp_path / f"ragen-cache-{os.getuid()}" / "x"
