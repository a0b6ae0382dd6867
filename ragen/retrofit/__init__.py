"""The engine put into a checkout of RAGEN: ``ragen retrofit CHECKOUT``.

    command.py    the command: its options, what it prints, its exit codes
    checkout.py   whether a folder is a checkout that is known, and what becomes of its own files
    imports.py    which modules of this package it needs, found by following their imports
    backup.py     git keeps what is replaced, and brings every byte back
    suite.py      runs in the checkout: whether rollouts are equal

All but the suite needs git and the standard library alone, and Python 3.10.
"""
