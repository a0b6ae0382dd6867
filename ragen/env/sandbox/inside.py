"""The script that runs in the sandbox; it uses only the standard library.

The zygote imports modules that programs use, then waits for runs. For each run it forks a keeper, which creates the
run's mounts and processes, forks the run, counts its resources, ends it, and reports over the run's own link. Zygote
and keeper execute only this script and keep their capabilities within the sandbox; the run has none.

A keeper stops a run for what it counts, never for elapsed time: processor time, bytes, processes, and the number of
looks at which all threads waited and no processor time was used. A run that is merely not scheduled is not stopped.

A frame on a link consists of two lengths, a JSON header, and bytes.
"""

import base64
import builtins
import ctypes
import fcntl
import io
import json
import math
import os
import resource
import select
import signal
import socket
import stat
import struct
import sys
import time
import traceback

LOOK = 0.02  # seconds between two looks at a run's resources
TICKS = os.sysconf("SC_CLK_TCK")
LAYER, HOME = "/run/layer", "/home/agent"
DEEPEST, LONGEST = 60, 1024  # folders, and bytes of a path, that are read: each folder on the way takes a descriptor
EPOCH = 1704067200  # 2024-01-01, UTC: the time of all files and clocks
MOST_ANSWER = 8 << 20  # maximum bytes that a program may send back
SENDING, FOLDER, FAILING = 3, 4, 5  # descriptors of a run
NESTED = 60  # maximum nesting of a value to send

_NEW_MOUNTS, _NEW_PROCESSES, _NEW_IPC = 0x20000, 0x20000000, 0x08000000
_READ_ONLY, _BIND, _DETACH, _NOSUID, _NODEV = 1, 4096, 2, 2, 4
_LENGTHS = struct.Struct("<II")

libc = ctypes.CDLL(None, use_errno=True)


class _Filter(ctypes.Structure):
    _fields_ = [("length", ctypes.c_ushort), ("instructions", ctypes.c_void_p)]


# Encoding of values


def encode(value, depth=0):
    """Encode a value for JSON; types that JSON lacks become a list that starts with a letter."""
    if value is None or isinstance(value, bool):
        return value
    for kind in (str, int, float):
        if isinstance(value, kind):
            return kind(value)
    if depth < NESTED:
        below = depth + 1
        if isinstance(value, (list, tuple)):
            return ["l" if isinstance(value, list) else "t", *[encode(each, below) for each in value]]
        if isinstance(value, dict):
            return ["d", *[[encode(key, below), encode(each, below)] for key, each in value.items()]]
        if isinstance(value, (set, frozenset)):
            return ["s", *[encode(each, below) for each in sorted(value, key=repr)]]
        if isinstance(value, (bytes, bytearray)):
            return ["b", bytes(value).hex()]
        if isinstance(value, complex):
            return ["c", value.real, value.imag]
    return ["o", repr(value)[:200]]


class Unknown(str):
    """The ``repr`` of a value of a type that cannot be sent; neither a key nor an element of a set."""

    __hash__ = None  # type: ignore[assignment]

    def __repr__(self):
        """The original ``repr``."""
        return str(self)


def decode(value):
    """Decode a result of :func:`encode` into builtin types; raises ``ValueError`` if it is malformed."""
    if not isinstance(value, list):
        if isinstance(value, dict):
            raise ValueError("an object")
        return value
    if not value or not isinstance(value[0], str):
        raise ValueError("a list without a kind")
    kind, rest = value[0], value[1:]
    try:
        if kind in "lt":
            items = [decode(each) for each in rest]
            return items if kind == "l" else tuple(items)
        if kind == "d":
            return {decode(key): decode(each) for key, each in rest}
        if kind == "s":
            return {decode(each) for each in rest}
        if kind == "b":
            return bytes.fromhex(rest[0])
        if kind == "c":
            return complex(float(rest[0]), float(rest[1]))
        if kind == "o":
            return Unknown(rest[0])
    except (TypeError, IndexError, AttributeError) as error:
        raise ValueError(f"not of kind {kind}: {error}") from error
    raise ValueError("a list of no known kind")


def send_frame(link, header, body=b""):
    """Send a JSON header and bytes."""
    text = json.dumps(header).encode()
    link.sendall(_LENGTHS.pack(len(text), len(body)) + text + body)


def receive_frame(link):
    """Receive a header and bytes; raises ``EOFError`` if the other side is gone."""
    lengths = _LENGTHS.unpack(_exactly(link, _LENGTHS.size))
    return json.loads(_exactly(link, lengths[0])), _exactly(link, lengths[1])


def _exactly(link, count):
    parts = []
    while count:
        part = link.recv(min(count, 1 << 20))
        if not part:
            raise EOFError("the other side is gone")
        parts.append(part)
        count -= len(part)
    return b"".join(parts)


# The zygote


def main():
    """Run the zygote until the worker is gone."""
    control = socket.socket(fileno=os.dup(0))
    nothing = os.open("/dev/null", os.O_RDWR)
    for standard in (0, 1, 2):
        os.dup2(nothing, standard)
    setup = json.loads(control.recv(1 << 20))
    processes = os.open("/proc", os.O_RDONLY | os.O_DIRECTORY)
    if setup["warm"]:
        warm_up()
    control.send(b"ready")
    while True:
        message, descriptors, _, _ = socket.recv_fds(control, 16, 1)
        if not message:
            os._exit(0)
        pid = os.fork()
        if not pid:
            code = 1
            try:
                control.close()
                link = socket.socket(fileno=descriptors[0])
                try:
                    keep(link, setup, processes)
                    code = 0
                except Exception:
                    send_frame(link, {"failed": traceback.format_exc()})
            finally:
                os._exit(code)
        os.close(descriptors[0])
        os.waitpid(pid, 0)
        del message, descriptors


def warm_up():
    """Import modules that programs use, and make clocks and random numbers deterministic."""
    import random

    sys.modules["_datetime"] = None  # the Python implementation calls time.time, which is replaced below
    sys.modules["_uuid"] = None  # so does that of uuid
    import bisect  # noqa: F401
    import itertools  # noqa: F401

    at = [EPOCH * 10**9]

    def nanoseconds():
        at[0] += 1000
        return at[0]

    def seconds():
        return nanoseconds() / 1e9

    for name in ("time", "monotonic", "perf_counter", "process_time", "thread_time"):
        setattr(time, name, seconds)
        setattr(time, f"{name}_ns", nanoseconds)
    time.clock_gettime, time.clock_gettime_ns = lambda clock: seconds(), lambda clock: nanoseconds()
    os.times = lambda: os.times_result((0.0,) * 5)
    moments = dict.fromkeys(("st_atime", "st_mtime", "st_ctime"), float(EPOCH))
    moments |= {f"{name}_ns": EPOCH * 10**9 for name in list(moments)}
    for name in ("stat", "lstat", "fstat"):
        status = getattr(os, name)

        def dated(*what, status=status, **options):
            found = status(*what, **options)
            kept = {name: getattr(found, name) for name in ("st_blksize", "st_blocks", "st_rdev")}
            return os.stat_result((*found[:7], EPOCH, EPOCH, EPOCH), kept | moments)

        setattr(os, name, dated)
        for able in (os.supports_fd, os.supports_dir_fd, os.supports_follow_symlinks):
            able |= {dated} if status in able else set()
    for name in ("localtime", "gmtime", "ctime"):
        real = getattr(time, name)
        setattr(time, name, lambda at=None, real=real: real(seconds() if at is None else at))
    formatted, asked = time.strftime, time.asctime
    time.strftime = lambda form, at=None: formatted(form, time.localtime() if at is None else at)
    time.asctime = lambda at=None: asked(time.localtime() if at is None else at)
    bytes_of = random.Random(0).randbytes
    os.urandom = random._urandom = bytes_of
    seed, drawn = random.Random.seed, random.Random(1)

    def seeded(self, a=None, version=2):
        seed(self, drawn.getrandbits(64) if a is None else a, version)

    random.Random.seed = seeded
    random.seed = random._inst.seed
    random.seed(0)


# The keeper


def keep(link, setup, processes):
    """Run one job and report."""
    job, body = receive_frame(link)
    allowed = base64.b64decode(setup["filter"])
    check(libc.unshare(_NEW_MOUNTS | _NEW_PROCESSES | _NEW_IPC))
    shell = job["kind"] == "shell"
    layer, before = lay_out(job, body) if shell else (None, {})
    if not shell:
        mount("tmpfs", "/tmp", "tmpfs", f"size={job['disk_mb']}m,nr_inodes=4096,mode=700")
        mount("tmpfs", "/proc", "tmpfs", "size=4k,nr_inodes=1,mode=555", _NOSUID | _NODEV | _READ_ONLY)
    reading, writing = os.pipe()
    folder = os.memfd_create("folder") if shell else os.open("/dev/null", os.O_WRONLY)
    heard, failing = os.pipe()
    pid = os.fork()
    if not pid:
        try:
            for target, source in enumerate(
                [fcntl.fcntl(each, fcntl.F_DUPFD, 16) for each in (writing, folder, failing)], 3
            ):
                os.dup2(source, target)
            os.closerange(6, 1 << 16)
            (command if shell else program)(job, allowed)
        except Exception:  # an error of this script: a confined program cannot raise up to here
            os.write(FAILING, traceback.format_exc().encode()[-4000:])
        finally:
            os._exit(70)
    os.close(writing)
    os.close(failing)
    told = watch(pid, link, reading, job, processes)
    if told is None:  # the worker has hung up
        os._exit(0)
    header, sent = told
    if failure := os.read(heard, 4096):
        send_frame(link, {"failed": failure.decode("utf-8", "replace")})
        return
    if shell and not header["stopped"]:
        header |= {"body": len(sent), "folder": os.pread(folder, 4096, 0).decode("utf-8", "surrogateescape")}
        try:
            changes, blobs = collect(layer, before, job["disk_mb"] << 20)
            header, sent = header | changes, sent + blobs
        except TooMuch:
            header["stopped"] = "files"
    send_frame(link, header, sent)


def watch(pid, link, reading, job, processes):
    """Read a run's output and count its resources until it ends; returns None if the worker has hung up."""
    ours = {1, os.getpid(), os.getppid()}
    ended, output, idle, looked, stopped = os.pidfd_open(pid), bytearray(), 0, 0.0, ""
    began = last = now()
    waited = {ended, reading, link.fileno()}
    while len(waited) > 1 and not stopped:
        for ready in select.select(waited, [], [], LOOK)[0]:
            if ready == link.fileno():
                end(pid)
                return None
            part = os.read(reading, 1 << 16) if ready == reading else b""
            output += part
            if not part:
                waited.remove(ready)
        if len(output) > job["output_bytes"]:
            stopped = "output"
        elif now() - last >= LOOK:
            last = now()
            used = usage(processes, ours)
            idle += used.waits  # never reset, so that neither naps nor a byte now and then buy more time
            looked = used.seconds
            stopped = over(job, used, idle, last - began)
    exit_status, resources = end(pid) if stopped else os.wait4(pid, 0)[1:]
    spent = max(looked, resources.ru_utime + resources.ru_stime)
    if spent > job["cpu_seconds"]:
        stopped = stopped or "time"
    return {"stopped": stopped, "cpu": spent, "status": exit_status}, bytes(output)


real_clock = time.clock_gettime_ns  # programs see another


def now():
    """Seconds of the real clock."""
    return real_clock(time.CLOCK_MONOTONIC) / 1e9


def end(pid):
    """Kill a run and all its processes; returns its status and its resource usage."""
    os.kill(pid, signal.SIGKILL)
    return os.wait4(pid, 0)[1:]


def over(job, used, idle, wall):
    """The limit that a run exceeds, or ""."""
    if used.seconds > job["cpu_seconds"]:
        return "time"
    if used.bytes > job["memory_mb"] << 20:
        return "memory"
    if used.count > job["processes"]:
        return "processes"
    return "waits" if idle * LOOK >= job["wait_seconds"] or wall >= job["wall_seconds"] else ""


class Usage:
    """A run's processor ``seconds``, resident ``bytes``, ``count`` of processes, and whether all wait."""

    seconds, bytes, count, waits = 0.0, 0, 0, True


def usage(processes, ours):
    """Sum up all processes of the sandbox except our own."""
    found, ticks = Usage(), 0
    for name in os.listdir(processes):
        if not name.isdigit() or int(name) in ours:
            continue
        try:
            fields = _stat(processes, f"{name}/stat")
            threads = os.open(f"{name}/task", os.O_RDONLY | os.O_DIRECTORY, dir_fd=processes)
        except OSError:
            continue  # it has ended
        ticks += sum(map(int, fields[11:15]))
        found.bytes += int(fields[21]) * resource.getpagesize()
        found.count += 1
        try:
            states = [_stat(threads, f"{thread}/stat")[0] for thread in os.listdir(threads)]
            found.waits = found.waits and all(state in "SZTt" for state in states)
        except OSError:
            found.waits = False
        finally:
            os.close(threads)
    found.seconds = ticks / TICKS
    return found


def _stat(folder, path):
    descriptor = os.open(path, os.O_RDONLY, dir_fd=folder)
    try:
        return os.read(descriptor, 4096).rpartition(b")")[2].decode().split()
    finally:
        os.close(descriptor)


# Confinement


def confine(job, allowed):
    """Give up all privileges; untrusted code runs after this."""
    limits = {
        resource.RLIMIT_CPU: math.ceil(job["cpu_seconds"]) + 1,
        resource.RLIMIT_AS: job["memory_mb"] << 20,
        resource.RLIMIT_NOFILE: 64,
        resource.RLIMIT_FSIZE: job["disk_mb"] << 20,
        resource.RLIMIT_CORE: 0,
        resource.RLIMIT_NPROC: job["processes"] + 9,  # the keeper enforces the exact number
        resource.RLIMIT_MSGQUEUE: 0,
        resource.RLIMIT_MEMLOCK: 0,
    }
    for which, most in limits.items():
        resource.setrlimit(which, (most, most))
    check(libc.prctl(47, 4, 0, 0, 0))  # no ambient capabilities
    for capability in range(64):
        libc.prctl(24, capability, 0, 0, 0)  # none that could be regained
    header, none = (ctypes.c_uint32 * 2)(0x20080522, 0), (ctypes.c_uint32 * 6)()
    check(libc.capset(header, none))
    check(libc.prctl(38, 1, 0, 0, 0))  # no new privileges
    if job["kind"] != "shell":
        os.close(FOLDER)
    instructions = ctypes.create_string_buffer(allowed)
    filtered = _Filter(len(allowed) // 8, ctypes.addressof(instructions))
    check(libc.prctl(22, 2, ctypes.byref(filtered), 0, 0))
    os.close(FAILING)


def check(code):
    """Raise the error of a failed C library call."""
    if code:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))


def mount(source, target, kind, options="", flags=_NOSUID | _NODEV):
    """Mount a file system."""
    check(libc.mount(source.encode(), target.encode(), kind.encode(), flags, options.encode()))


# A program and its tests


def program(job, allowed):
    """Run a Python program; answers each test with a line of JSON: number, outcome and result."""
    os.chdir("/tmp")
    read = os.open("/tmp/in", os.O_RDWR | os.O_CREAT, 0o600)
    written = os.open("/tmp/out", os.O_RDWR | os.O_CREAT, 0o600)
    os.unlink("/tmp/in")
    os.unlink("/tmp/out")
    tests, source, shown = job["tests"], job["source"], job["shown_bytes"]
    del job["tests"], job["source"]
    sys.modules["random"].seed(0)  # it is reseeded in every fork
    confine(job, allowed)
    try:
        code = builtins.compile(source, "<program>", "exec")
    except (SyntaxError, ValueError, MemoryError, RecursionError, OverflowError) as error:
        answer("syntax", "", told(error))
        os._exit(0)
    if any("call" in test for test in tests):
        names = {"__name__": "solution", "__builtins__": builtins}
        try:
            exec(code, names)
        except BaseException as error:
            answer("load", "", told(error))
            os._exit(0)
        answer_calls(names, tests, shown)
    else:
        answer_inputs(code, tests, read, written, shown)
    os._exit(0)


def answer_calls(names, tests, shown):
    """Call the function for each test."""
    for number, test in enumerate(tests):
        try:
            value = callee(names, test["call"])(*[decode(each) for each in test["args"]])
            line = json.dumps(encode(value))
            if len(line) > shown:
                answer(number, "raised", f"the result has {len(line)} characters, more than {shown}")
            else:
                answer(number, "gave", encode(value))
        except BaseException as error:
            answer(number, "raised", told(error))


def callee(names, name):
    """The function of this name, or the method of class ``Solution``."""
    if name in names:
        return names[name]
    if "Solution" in names and hasattr(names["Solution"], name):
        return getattr(names["Solution"](), name)
    raise NameError(f"the program defines no function {name!r}")


def answer_inputs(code, tests, read, written, shown):
    """Run the program once per test, each time with new standard input and output."""
    for number, test in enumerate(tests):
        for descriptor, text in ((read, test["stdin"].encode("utf-8", "surrogatepass")), (written, b"")):
            os.ftruncate(descriptor, 0)
            os.pwrite(descriptor, text, 0)
            os.lseek(descriptor, 0, os.SEEK_SET)
        os.dup2(read, 0)
        os.dup2(written, 1)
        sys.stdin = io.TextIOWrapper(io.FileIO(0, closefd=False), encoding="utf-8", errors="replace")
        sys.stdout = io.TextIOWrapper(io.FileIO(1, "w", closefd=False), encoding="utf-8", errors="replace")
        how = ""
        try:
            exec(code, {"__name__": "__main__", "__builtins__": builtins})
        except SystemExit:
            pass
        except BaseException as error:
            how = told(error)
        try:
            sys.stdout.flush()
        except BaseException as error:
            how = how or told(error)
        printed = os.pread(written, shown, 0).decode("utf-8", "replace")
        answer(number, *(("raised", how) if how else ("gave", printed)))


def answer(*line):
    """Send one line."""
    left = json.dumps(line).encode() + b"\n"
    while left:
        left = left[os.write(SENDING, left) :]


def told(error):
    """An exception as a short text."""
    try:
        text = f"{type(error).__name__}: {error}"
    except BaseException:
        text = type(error).__name__
    return text[:300]


# A command and its files


def lay_out(job, body):
    """Write the job's files, in the order of their names, into a new file system for this run.

    Returns:
        A descriptor of its root, and the marks of each file, to find changes later.
    """
    options = f"size={job['disk_mb']}m,nr_inodes={job['files_at_most']},mode=755"
    mount("tmpfs", "/run", "tmpfs", "size=64k,mode=755")
    os.mkdir(LAYER)
    mount("tmpfs", LAYER, "tmpfs", options)
    layer = os.open(LAYER, os.O_RDONLY | os.O_DIRECTORY)
    os.umask(0)
    at = 0
    for path, kind, mode, detail in job["files"]:
        if kind == "d":
            os.mkdir(path, 0o700, dir_fd=layer)
        elif kind == "l":
            os.symlink(detail, path, dir_fd=layer)
        else:
            descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, mode, dir_fd=layer)
            os.write(descriptor, body[at : at + detail])
            os.close(descriptor)
            at += detail
    for path, kind, mode, _ in reversed(job["files"]):
        if kind == "d":
            os.chmod(path, mode, dir_fd=layer)
        os.utime(path, (EPOCH, EPOCH), dir_fd=layer, follow_symlinks=False)
    before = {path: marks(info) for path, info in entries(layer)}
    for inner, outer in (("home", HOME), ("tmp", "/tmp")):
        mount(f"{LAYER}/{inner}", outer, "none", "", _BIND)
    check(libc.umount2(b"/run", _DETACH))
    return layer, before


def marks(info):
    """Attributes that differ if a file was changed; a program cannot set the last one."""
    return info.st_ino, info.st_mode, info.st_size, info.st_mtime_ns, info.st_ctime_ns


class TooMuch(Exception):
    """A command has left files that are not read: too deep, or of more bytes than the disk, as sparse ones may be."""


def entries(layer):
    """All files below a folder with their attributes, a folder before its contents; follows no links.

    Raises:
        TooMuch: A folder is deeper, or a path longer, than any that is read.
    """
    for root, folders, files, descriptor in os.fwalk(".", dir_fd=layer, follow_symlinks=False):
        for name in sorted((*folders, *files)):
            path = os.path.normpath(os.path.join(root, name))
            if path.count("/") >= DEEPEST or len(os.fsencode(path)) >= LONGEST:
                raise TooMuch
            yield path, os.stat(name, dir_fd=descriptor, follow_symlinks=False)


def collect(layer, before, most):
    """The changes since :func:`lay_out`: entries with their contents, and deleted paths.

    Raises:
        TooMuch: All files, as they would be read, with holes and every hard link, have more than ``most`` bytes.
    """
    changed, blobs, seen, size = [], [], set(), 0
    for path, info in entries(layer):
        mode = info.st_mode
        if not (stat.S_ISREG(mode) or stat.S_ISDIR(mode) or stat.S_ISLNK(mode)):
            continue  # pipes and sockets end with the command
        seen.add(path)
        size += info.st_size if stat.S_ISREG(mode) else 0
        if size > most:
            raise TooMuch
        if before.get(path) == marks(info):
            continue
        if stat.S_ISDIR(mode):
            changed.append([path, "d", stat.S_IMODE(mode), None])
        elif stat.S_ISLNK(mode):
            changed.append([path, "l", 0o777, os.readlink(path, dir_fd=layer)])
        else:
            descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW, dir_fd=layer)
            with os.fdopen(descriptor, "rb") as file:
                blobs.append(file.read())
            changed.append([path, "f", stat.S_IMODE(mode), len(blobs[-1])])
    gone = sorted(set(before) - seen)
    return {"changed": changed, "gone": gone}, b"".join(blobs)


def command(job, allowed):
    """Act as the first process of a run: start the shell, reap its processes, and exit with its status."""
    mount("proc", "/proc", "proc")
    libc.prctl(4, 0, 0, 0, 0)  # keeps this process's memory from the run
    pid = os.fork()
    if not pid:
        try:
            os.setsid()
            os.umask(0o022)
            os.dup2(FOLDER, 9)
            os.dup2(SENDING, 1)
            os.dup2(SENDING, 2)
            os.set_inheritable(FAILING, False)
            os.close(SENDING)
            os.close(FOLDER)
            try:
                os.chdir(job["folder"])
            except (OSError, ValueError):  # it is gone, or no path: the last command wrote it
                os.chdir(HOME)
            confine(job, allowed)
            arguments = [
                "bash",
                "--norc",
                "--noprofile",
                "-c",
                job["script"],
                "bash",
                job["command"],
                *job["arguments"],
            ]
            os.execve("/bin/bash", arguments, job["environ"])
        except Exception:
            os.write(FAILING, traceback.format_exc().encode()[-4000:])
        finally:
            os._exit(71)
    os.closerange(SENDING, FAILING + 1)
    while True:
        ended, status = os.wait()
        if ended == pid:
            code = os.waitstatus_to_exitcode(status)
            os._exit(code if code >= 0 else 128 - code)


if __name__ == "__main__":
    main()
