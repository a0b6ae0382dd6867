"""The rules of all families of games, parsed as this module is imported.

Workers are forks of a process that has imported it, so that one which takes a killed one's place need not parse them,
which takes as long as twenty turns. TextWorld keeps what it has parsed by the text, which every game contains: that of
the family's files, in the order in which ``glob`` lists them.
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
