"""Parses the rules of all families of games when it is imported.

Parsing takes as long as twenty turns. Workers are forked from a process that has imported this module, so a worker that
replaces a killed one does not parse the rules again. TextWorld caches parsed rules by their text; a game contains the
text of its family's files in the order in which ``glob`` lists them.
"""

import glob
import os
from pathlib import Path

from textworld.challenges.tw_coin_collector import coin_collector
from textworld.challenges.tw_cooking import cooking
from textworld.generator.data import KB
from textworld.logic import GameLogic

for folder in (KB.logic_path, cooking.KB_LOGIC_PATH, os.path.join(coin_collector.KB_PATH, "logic")):
    GameLogic.parse("".join(f"{Path(path).read_text()}\n" for path in glob.glob(os.path.join(folder, "*.twl"))))
