"""A sandbox for programs that no one has read: bubblewrap, a filter of system calls, a warm interpreter.

::

    worker process                      | sandbox: own users, processes, mounts, network (none)
    Sandbox.run(job) ---- control ----> | zygote: Python, warm, runs nothing that is not ours
                     <----- link -----> |   keeper: forked for this run; watches it, ends it, reports
                                        |     the run: own processes and mounts, no capabilities, filtered calls

A run sees what its job holds and nothing else: what a program's results should be stays in the worker. What a program
sends back is data, compared outside. :mod:`~ragen.env.sandbox.host` is the worker's side,
:mod:`~ragen.env.sandbox.inside` the script that runs in the sandbox, :mod:`~ragen.env.sandbox.system_calls` the filter.
There is no other way to run a program: where the sandbox cannot be had, :class:`~ragen.errors.SandboxError` says what
is missing and the command that brings it.
"""

from __future__ import annotations

from ragen.env.sandbox.host import PROGRAMS, SHELL, Ended, InSandbox, Limits, Profile, Sandbox, missing

__all__ = ["PROGRAMS", "SHELL", "Ended", "InSandbox", "Limits", "Profile", "Sandbox", "missing"]
