"""A Chromium without a window, through playwright; a test that needs one is skipped where either is not installed."""

import contextlib
import shutil
from importlib.util import find_spec

NAMES = ("chromium", "chromium-browser", "google-chrome", "chrome")


def path():
    """Where one is installed; None if none is, or playwright is not."""
    return next(filter(None, map(shutil.which, NAMES)), None) if find_spec("playwright") else None


class Page:
    """A tab."""

    def __init__(self, page):
        self._page = page

    def look(self, width, dark=False):
        """The width of the window, and whether the reader wants it dark."""
        self._page.set_viewport_size({"width": width, "height": 900})
        self._page.emulate_media(color_scheme="dark" if dark else "light")

    def open(self, address):
        """Load a page, until its script has run."""
        self._page.goto(address)

    def value(self, script):
        """What an expression is, promises waited for."""
        return self._page.evaluate(f"() => ({script})")

    def until(self, script):
        """Wait until an expression is true."""
        self._page.wait_for_function(f"() => ({script})")


@contextlib.contextmanager
def chromium():
    """A tab of a fresh browser, and a list of what the browser complains of."""
    from playwright.sync_api import sync_playwright

    complaints = []
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=path(), args=["--no-sandbox"])
        page = browser.new_page()
        page.on("pageerror", lambda error: complaints.append(str(error)))
        page.on("console", lambda said: complaints.append(said.text) if said.type == "error" else None)
        yield Page(page), complaints
        browser.close()
