"""Parses ALFWorld's own domain and grammar when it is imported, and does what else every process must do once.

Parsing takes as long as three turns. Workers are forked from a process that has imported this module, so a worker that
replaces a killed one does none of this again, and has a first copy of the planner's library.
"""

import codecs

import fast_downward.translate.pddl  # noqa: F401  # translations are pickled

from ragen.env.alfworld.engine import read_logic, story, version
from ragen.env.alfworld.tasks import domain, grammar

read_logic(domain(), grammar())
story().close()
codecs.lookup("cp1252")
version()
