"""The page in a real browser: it is there at once, it opens, filters and searches, and no text in it runs."""

import pytest
from test_page import EVIL, row, write

from ragen.results.page import render
from support import chromium

pytestmark = pytest.mark.skipif(chromium.path() is None, reason="no Chromium with playwright is installed")
BOARD = "You see:\n#P_\n#OX\nYou have 3 actions left."


@pytest.fixture(scope="module")
def browser():
    with chromium.chromium() as (page, complaints):
        yield page, complaints


def address(folder, rows):
    path = folder / "report.html"
    path.write_text(render(write(folder, rows), rows), "utf-8")
    return path.as_uri()


@pytest.fixture(scope="module")
def many(tmp_path_factory):
    """The page of ten thousand trajectories."""
    rows = [row(BOARD, env_id=number, success=bool(number % 2)) for number in range(9_999)]
    return address(tmp_path_factory.mktemp("many"), [*rows, row(reply="the needle", env_id=9_999, tag="B")])


def choose(page, name, value):
    page.value(
        f"(f => {{ f.{name}.value = '{value}'; f.{name}.dispatchEvent(new Event('input', {{bubbles: true}})); }})"
        "(document.querySelector('form'))"
    )


def count(page):
    return page.value("document.querySelector('.count').textContent")


@pytest.mark.parametrize("width", [1400, 400])
def test_thousands_of_trajectories_are_there_at_once_and_open(browser, many, width):
    page, complaints = browser
    page.look(width, dark=width == 400)
    page.open(many)
    assert page.value("document.querySelectorAll('details.row').length") == 100 and count(page).startswith("10000 of")
    assert page.value("document.documentElement.scrollWidth") <= width
    page.value("document.querySelector('details.row').open = true")
    page.until("document.querySelector('details.row .grid')")
    cells = "Array.from(document.querySelectorAll('details.row .grid span')).map(each => each.textContent).join('')"
    assert page.value(cells) == "#P_#OX"
    shown = page.value("document.querySelector('details.row .turns').textContent")
    assert all(text in shown for text in ("You see:", "You have 3 actions left.", "hm", "Up"))
    assert page.value("document.documentElement.scrollWidth") <= width
    choose(page, "outcome", "no success")
    page.until("document.querySelector('.count').textContent.startsWith('5000 of')")
    choose(page, "outcome", "")
    choose(page, "words", "needle")
    page.until("document.querySelector('.count').textContent.startsWith('1 of')")
    assert "env 9999" in page.value("document.querySelector('details.row').textContent")
    assert complaints == []


@pytest.mark.parametrize(
    ("text", "boards"),
    [
        ("State:\n######\n#P_XO#\n######", ["######", "#P_XO#", "######"]),
        ("# #\n# _\n", ["##", "#_"]),
        ("a line\nand another one", []),
        ("\U0001f600\u4e2d\n\u4e2d\u4e2d", []),
        ("√S_\n_P_", ["√S_", "_P_"]),
    ],
)
def test_a_board_within_a_text_is_drawn(browser, many, text, boards):
    page, _ = browser
    page.open(many)
    page.value(f"document.body.replaceChildren(withBoards({text!r}))")
    drawn = "Array.from(document.querySelectorAll('.grid span')).map(each => each.textContent).join('')"
    assert page.value(drawn) == "".join(boards)


def test_nothing_that_was_written_runs_or_becomes_an_element(browser, tmp_path):
    page, complaints = browser
    chats = [[{"role": role, "content": text} for role in (text, "user", "assistant")] for text in EVIL]
    rows = [
        row(tag=text, env_id=at, messages=chat, infos=[{text: text}], actions=[[text]], error=text, last_state=text)
        | {"raw_replies": [f"{text}?"], "images": [[text]]}
        for at, (text, chat) in enumerate(zip(EVIL, chats, strict=True))
    ]
    page.look(1400)
    page.open(address(tmp_path, rows))
    page.value("window.alert = () => { window.ran = true }")
    page.value("document.querySelectorAll('details.row').forEach(row => { row.open = true })")
    page.until(f"document.querySelectorAll('details.row .turns').length === {len(EVIL)}")
    page.value("document.querySelectorAll('*').forEach(each => each.dispatchEvent(new Event('mouseover')))")
    assert page.value("window.ran === undefined")
    assert page.value("document.querySelectorAll('main script:not([type]), iframe, base, main style').length") == 0
    assert "\u202e" not in page.value("document.querySelector('#list').textContent")
    assert complaints == []
