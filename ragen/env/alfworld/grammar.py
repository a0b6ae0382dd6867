"""ALFWorld's own domain and grammar, read as this module is imported.

Workers are forks of a process that has imported it, so that one which takes a killed one's place need not read them,
which takes as long as three turns.
"""

from ragen.env.alfworld.engine import read_logic
from ragen.env.alfworld.tasks import domain, grammar

read_logic(domain(), grammar())
