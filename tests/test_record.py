"""The recorder of the terminal, and the recording in the README."""

import importlib.util
import re
import sys
from pathlib import Path
from xml.etree import ElementTree

import pytest

ROOT = Path(__file__).resolve().parents[1]
SVG = "{http://www.w3.org/2000/svg}"


@pytest.fixture(scope="module")
def record():
    spec = importlib.util.spec_from_file_location("record", ROOT / "docs" / "record.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_frames_follow_each_other_and_the_last_one_stays_where_nothing_moves(record):
    tree = ElementTree.fromstring(record.animation([(0.0, "<text>a</text>"), (2.0, "<text>b</text>")]))
    first, last = (group.get("style") for group in tree.iter(f"{SVG}g"))
    assert first.startswith("opacity: 0; animation: f0 10.00s") and last.startswith("opacity: 1; animation: f1 10.00s")
    styles = tree.find(f"{SVG}style").text
    assert re.search(r"f0 .* 20\.0000% \{ opacity: 1 \} 20\.0001%, 100% \{ opacity: 0 \}", styles)
    assert re.search(r"f1 \{ 0%, 20\.0000% \{ opacity: 0 \} 20\.0001%, 100\.0000% \{ opacity: 1 \} \}", styles)


def test_a_command_is_recorded_with_its_colours(record):
    pytest.importorskip("pyte")
    program = "print('one'); print('\\x1b[1;32mtwo <&>\\x1b[0m')"
    frames = record.recorded([sys.executable, "-c", program])
    last = ElementTree.fromstring(f"<svg>{frames[-1][1]}</svg>")
    assert [line[0].text for line in last][-1] == "two <&>" and last[-1][0].get("font-weight") == "bold"


def test_the_recording_in_the_readme_ends_with_the_work_of_environments():
    tree = ElementTree.parse(ROOT / "docs" / "images" / "terminal.svg")
    *_, last = tree.iter(f"{SVG}g")
    lines = ["".join(line.itertext()) for line in last]
    assert lines[0].startswith("$ ragen rollout") and any(line.startswith("environments: ") for line in lines)
