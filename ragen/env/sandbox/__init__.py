"""A sandbox for untrusted programs: bubblewrap, a system call filter, and a warm interpreter.

::

    worker process                      | sandbox: own users, processes, mounts, network (none)
    Sandbox.run(job) ---- control ----> | zygote: a warm Python that runs only this package's code
                     <----- link -----> |   keeper: forked for one run; watches it, ends it, reports
                                        |     the run: own processes and mounts, no capabilities, filtered calls

A run sees only the contents of its job; expected results stay in the worker. The output of a program is data, compared
outside. :mod:`~ragen.env.sandbox.host` is the worker's side, :mod:`~ragen.env.sandbox.inside` the script that runs in
the sandbox, and :mod:`~ragen.env.sandbox.system_calls` the filter. There is no other way to run a program: where a
sandbox cannot run, :class:`~ragen.errors.SandboxError` names what is missing and how to install it.
"""
