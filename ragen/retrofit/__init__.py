"""The engine put into a checkout of RAGEN: ``python -m ragen.retrofit CHECKOUT``.

    command.py    what the command says and does
    checkout.py   whether a folder is a checkout that is known, and of which generation
    travel.py     which modules of this package have to travel, found by following their imports
    adapt.py      what becomes of the checkout's own files
    keeping.py    files put in place with a copy kept, and every byte brought back
    suite.py      runs in the checkout, and travels there: are rollouts equal, and which environments pay

All but the suite needs the standard library alone, and Python 3.10.
"""
