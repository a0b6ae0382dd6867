"""Installs the engine in a checkout of RAGEN: ``ragen retrofit CHECKOUT``.

    command.py    the command: options, output, exit codes
    checkout.py   recognizes a checkout, and adapts its own files
    imports.py    finds the modules of this package to install, by following imports
    backup.py     keeps the replaced files in a git repository, and restores them
    suite.py      runs in the checkout and compares rollouts

All but the suite needs only git, the standard library and Python 3.10.
"""
