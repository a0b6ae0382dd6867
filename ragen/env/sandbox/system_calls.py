"""The system calls that a sandboxed program may make; all others fail with EPERM.

``memfd_create`` is none of them: its memory belongs to no process and no file system, so no limit would count it.

libseccomp compiles the filters for this machine's processor. Some calls behave differently: sleeping returns at once,
since waiting proves nothing; every lock on a file is granted and none is taken, since sandboxes share the files of the
system and would see each other's locks (nor may they watch files or the page cache, for the same reason);
``getrandom`` does not exist, so random bytes come from a fixed file; and ``clone3`` does not exist, so the C library
uses ``clone``, whose flags a filter can check.
"""

from __future__ import annotations

import ctypes
import errno
import os
import re
from typing import Any, NamedTuple

from ragen.errors import SandboxError

LIBRARY = "libseccomp.so.2"

_ALLOW, _ERRNO = 0x7FFF0000, 0x00050000
_EQUAL, _MASKED_EQUAL = 4, 7
_CLONE_THREAD, _CLONE_NEW = 0x10000, 0x7E020000  # a thread; any new namespace
_TERMINAL_QUESTIONS = (
    0x5401,
    0x5413,
    0x541B,
    0x540F,
    0x5451,
    0x5450,
    0x5421,
)  # TCGETS, its size, FIONREAD, FIOCLEX ...
_HARMLESS_PRCTL = (1, 3, 15, 16, 23)  # the parent's death, dumpable?, names, a capability of the bounding set?

ASLEEP = ("nanosleep", "clock_nanosleep")
_FCNTL = (0, 1, 2, 3, 4, 1030, 1031, 1032, 1033, 1034)  # copies and flags of descriptors, sizes of pipes, seals
_FCNTL_LOCKS = (6, 7, 37, 38)  # F_SETLK, F_SETLKW, and those of open file descriptions
UNKNOWN = ("getrandom", "clone3")

PROGRAM = re.findall(
    r"\w+",
    """
    creat read write readv writev pread64 pwrite64 close lseek open openat stat fstat lstat newfstatat statx access
    faccessat faccessat2 readlink readlinkat getdents64 getcwd chdir fchdir dup dup2 dup3 pipe pipe2 poll
    ppoll select pselect6 epoll_create1 epoll_ctl epoll_wait epoll_pwait eventfd2 mmap munmap mprotect mremap
    madvise brk futex set_robust_list get_robust_list rseq sched_yield sched_getaffinity rt_sigaction rt_sigprocmask
    rt_sigreturn sigaltstack exit exit_group clock_gettime clock_getres gettimeofday time times getrusage getpid
    gettid getppid getuid geteuid getgid getegid getresuid getresgid getgroups getpgrp getpgid getsid uname sysinfo
    umask unlink unlinkat rename renameat renameat2 mkdir mkdirat rmdir ftruncate truncate fsync fdatasync utimensat
    chmod fchmod fchmodat symlink symlinkat link linkat arch_prctl set_tid_address restart_syscall membarrier
    getrlimit statfs fstatfs fadvise64
    """,
)
"""System calls of Python programs: files, memory, threads, clocks."""

COMMANDS = re.findall(
    r"\w+",
    """
    execve execveat fork vfork wait4 waitid kill tgkill tkill rt_sigsuspend rt_sigtimedwait rt_sigpending pause
    setpgid setsid setitimer getitimer alarm timer_create timer_settime timer_gettime timer_delete timer_getoverrun
    sendfile splice tee copy_file_range chown fchown lchown fchownat mknod mknodat setxattr lsetxattr fsetxattr
    removexattr lremovexattr fremovexattr getxattr lgetxattr fgetxattr listxattr llistxattr flistxattr
    fallocate sync syncfs prlimit64 setrlimit sched_getparam
    sched_getscheduler getpriority capget utime utimes futimesat pidfd_open pidfd_send_signal
    """,
)
"""Further system calls of a shell and its commands."""


class Compare(NamedTuple):
    """A condition on an argument: ``value & mask == wanted``, or equality if the mask is None."""

    argument: int
    mask: int | None
    wanted: int


class _Arg(ctypes.Structure):
    _fields_ = (
        ("arg", ctypes.c_uint),
        ("op", ctypes.c_int),
        ("datum_a", ctypes.c_uint64),
        ("datum_b", ctypes.c_uint64),
    )


def compile_filter(commands: bool) -> bytes:
    """Compile the filter into the kernel's format.

    Args:
        commands: Whether the filter is for a shell; otherwise for a Python program, which cannot start processes.

    Returns:
        The instructions, 8 bytes each.

    Raises:
        SandboxError: libseccomp is not installed, or refuses a rule.
    """
    rules: list[tuple[str, int, Compare | None]] = [(name, _ALLOW, None) for name in PROGRAM]
    rules += [(name, _ERRNO, None) for name in ASLEEP]  # with errno 0: as if they had slept
    rules += [(name, _ERRNO | errno.ENOSYS, None) for name in UNKNOWN]
    rules += [("ioctl", _ALLOW, Compare(1, None, question)) for question in _TERMINAL_QUESTIONS]
    rules += [("flock", _ERRNO, None)] + [("fcntl", _ERRNO, Compare(1, None, lock)) for lock in _FCNTL_LOCKS]
    rules += [("fcntl", _ALLOW, Compare(1, None, command)) for command in _FCNTL]
    if commands:
        rules += [(name, _ALLOW, None) for name in COMMANDS]
        rules += [("clone", _ALLOW, Compare(0, _CLONE_NEW, 0))]
        rules += [("prctl", _ALLOW, Compare(0, None, option)) for option in _HARMLESS_PRCTL]
    else:
        rules += [("clone", _ALLOW, Compare(0, _CLONE_THREAD | _CLONE_NEW, _CLONE_THREAD))]
        rules += [("prlimit64", _ALLOW, Compare(2, None, 0))]  # reads a limit, and sets none
    library = load_library()
    context = library.seccomp_init(_ERRNO | errno.EPERM)
    if not context:
        raise SandboxError("libseccomp cannot create a filter on this machine.")
    descriptor = os.memfd_create("filter")
    try:
        for name, action, compare in rules:
            number, arguments = library.seccomp_syscall_resolve_name(name.encode()), (_Arg * 1)()
            if number < 0:  # this processor has no such call
                continue
            if compare is not None:
                exact = compare.mask is None
                data = (_EQUAL, compare.wanted, 0) if exact else (_MASKED_EQUAL, compare.mask, compare.wanted)
                arguments[0] = _Arg(compare.argument, *data)
            code = library.seccomp_rule_add_array(context, action, number, int(compare is not None), arguments)
            if code:
                raise SandboxError(f"libseccomp refuses a rule for {name}: {os.strerror(-code)}.")
        if code := library.seccomp_export_bpf(context, descriptor):
            raise SandboxError(f"libseccomp cannot write its filter: {os.strerror(-code)}.")
        return os.pread(descriptor, 1 << 20, 0)
    finally:
        os.close(descriptor)
        library.seccomp_release(context)


def load_library() -> Any:
    """Libseccomp.

    Raises:
        SandboxError: It is not installed.
    """
    try:
        library = ctypes.CDLL(LIBRARY)
    except OSError as error:
        raise SandboxError(f"{LIBRARY} cannot be loaded ({error}): apt-get install libseccomp2") from error
    library.seccomp_init.restype = ctypes.c_void_p
    library.seccomp_init.argtypes = [ctypes.c_uint32]
    library.seccomp_release.argtypes = [ctypes.c_void_p]
    library.seccomp_syscall_resolve_name.argtypes = [ctypes.c_char_p]
    library.seccomp_export_bpf.argtypes = [ctypes.c_void_p, ctypes.c_int]
    signature: list[Any] = [ctypes.c_void_p, ctypes.c_uint32, ctypes.c_int, ctypes.c_uint, ctypes.POINTER(_Arg)]
    library.seccomp_rule_add_array.argtypes = signature
    return library
