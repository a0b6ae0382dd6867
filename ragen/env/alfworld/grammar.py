"""Parses ALFWorld's own domain and grammar when it is imported.

Parsing takes as long as three turns. Workers are forked from a process that has imported this module, so a worker that
replaces a killed one does not parse them again.
"""

from ragen.env.alfworld.engine import read_logic
from ragen.env.alfworld.tasks import domain, grammar

read_logic(domain(), grammar())
