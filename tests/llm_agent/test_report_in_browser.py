"""The report in a real browser: it is there at once, it opens, filters and searches, and no text in it runs."""

import pytest
from test_report import EVIL, episode, turn

from ragen.llm_agent.report import Report, render
from support import chromium

with_browser = pytest.mark.skipif(chromium.path() is None, reason=f"none of {', '.join(chromium.NAMES)} is installed")
CHAT = [{"role": "user", "content": "the whole prompt"}, {"role": "assistant", "content": "a"}]


@pytest.fixture(scope="module")
def browser(tmp_path_factory):
    with chromium.chromium(tmp_path_factory.mktemp("profile")) as (page, complaints):
        yield page, complaints


def shown(page, path, episodes):
    path.write_text(render(Report("A run", episodes=episodes)), "utf-8")
    page.open(path.as_uri())


@pytest.fixture(scope="module")
def many(tmp_path_factory):
    """The page of three thousand trajectories."""
    others = [episode(turn("#P_\n#OX"), env_id=n, success=float(n % 2), chat=CHAT) for n in range(2_999)]
    path = tmp_path_factory.mktemp("many") / "report.html"
    path.write_text(render(Report("r", episodes=[*others, episode(turn(reply="the needle"), env_id=2_999, tag="B")])))
    return path.as_uri()


def rows(page):
    return page.value("document.querySelectorAll('details.row').length")


@with_browser
@pytest.mark.parametrize("width", [1400, 400])
def test_thousands_of_trajectories_are_there_at_once_and_open(browser, many, width):
    page, complaints = browser
    page.look(width, dark=width == 400)
    page.open(many)
    assert rows(page) == 100 and page.value("document.querySelector('.count').textContent").startswith("3000 of 3000")
    assert page.value("document.documentElement.scrollWidth") <= width
    page.value("document.querySelector('details.row').open = true")
    page.until("document.querySelector('details.row .grid')")
    page.value("document.querySelector('details.row button.prompt').click()")
    assert page.value("document.querySelector('.prompts').textContent") == "the whole prompt"
    page.value("(f => { f.words.value = 'needle'; f.words.dispatchEvent(new Event('input', {bubbles: true})); })"
               "(document.querySelector('form'))")  # fmt: skip
    page.until("document.querySelector('details.row').textContent.includes('env 2999')")
    assert page.value("document.querySelector('.count').textContent").startswith("1 of 3000")
    assert complaints == []


@with_browser
def test_nothing_that_was_written_runs_or_becomes_an_element(browser, tmp_path):
    page, complaints = browser
    chat = [{"role": text, "content": text} for text in EVIL] + [{"role": "assistant", "content": EVIL[0]}]
    evils = [
        episode(turn(text, text, [text], **{text: text}), tag=text, home=text, error=text, chat=chat) for text in EVIL
    ]
    page.look(1400)
    shown(page, tmp_path / "evil.html", evils)
    page.value("window.alert = () => { window.ran = true }")
    page.value("document.querySelectorAll('details.row').forEach(row => { row.open = true })")
    page.until(f"document.querySelectorAll('details.row .turns').length === {len(EVIL)}")
    page.value("document.querySelectorAll('button.prompt').forEach(button => button.click())")
    page.value("document.querySelectorAll('*').forEach(each => each.dispatchEvent(new Event('mouseover')))")
    assert page.value("window.ran === undefined")
    assert page.value("document.querySelectorAll('main script:not([type]), iframe, base, img, main style').length") == 0
    assert [text for text in complaints if "Content Security" in text] == [] == complaints
