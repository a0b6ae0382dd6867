"""One Chromium for all environments of a process, shut in a bubblewrap without a network.

::

    worker process                  | playwright's driver (node) | bubblewrap: own processes, users, network (none)
    Browser: a thread of its own ---- pipe --------------------------- Chromium, with its own sandbox for pages
      Page: a context each          |                            |   its profile, in memory

The profile lies in a file system in memory that ends with the browser, and the browser ends with the worker, however
that ends. Chromium sees the pages, its own files and fonts, and nothing else of the machine; it never runs as root, and
never without its own sandbox.
"""

from __future__ import annotations

import os
import shutil
import stat
import sys
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from ragen.errors import ResourceError, SandboxError, install_command
from ragen.extras import missing as missing_packages
from ragen.extras import needs, package_folder
from ragen.resources import Lease, environment_variable, temporary_folder, worker_resource

T = TypeVar("T")

NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
"""What is looked for on the path where a configuration names no browser."""

SIZE = {"width": 500, "height": 400}
WAIT = 120_000  # milliseconds for one thing that a page is asked; a crowded machine may need half a minute
BEGINNING = 10_000  # milliseconds that a page's clock says when its episode begins
TICK = 1000  # milliseconds that the page's clock continues with each action
_INSTALL = "apt-get install chromium bubblewrap"
_SEEN = ("/usr", "/lib", "/lib64", "/bin", "/sbin", "/opt/google", "/etc/fonts", "/etc/alternatives", "/etc/chromium")
_SEEN_FILES = ("/etc/chromium.d", "/etc/ld.so.cache", "/etc/ld.so.conf", "/etc/ld.so.conf.d", "/etc/localtime")
_SWITCHES = ["--disable-gpu", "--disable-dev-shm-usage", "--mute-audio", "--force-device-scale-factor=1"]


def pages() -> Path:
    """The folder of MiniWoB++'s pages, in the package ``miniwob``, of which nothing is imported.

    Raises:
        MissingExtraError: It is not installed.
    """
    with needs("browser", "a page of MiniWoB++"):
        return package_folder("miniwob") / "html"


def browser_of(path: str | None) -> str | None:
    """The browser at a path, or the system's; None where there is none."""
    if path is not None:
        return path if os.access(path, os.X_OK) else None
    return next(filter(None, map(shutil.which, NAMES)), None)


def missing(path: str | None = None) -> list[str]:
    """What this machine lacks, each with the command that brings it; nothing is started."""
    if sys.platform != "linux":
        return [f"Linux: this is {sys.platform}, which has no namespaces to shut a browser in"]
    lacks = [f"{name}: {install_command('browser')}" for name in missing_packages("browser")]
    if browser_of(path) is None:
        lacks.append(f"{path or 'Chromium'}: {_INSTALL}")
    if shutil.which("bwrap") is None:
        lacks.append(f"bubblewrap: {_INSTALL}")
    return lacks


def hold_browser(path: str | None) -> Lease[Browser]:
    """This process's browser, started now if there is none.

    Raises:
        SandboxError: It cannot be had here.
    """
    if lacks := missing(path):
        raise SandboxError(f"A browser cannot be had here. Missing: {'; '.join(lacks)}.")
    return worker_resource(("chromium", path), lambda: Browser(path), Browser.close)


@dataclass(frozen=True)
class Seen:
    """What a page shows.

    Attributes:
        task: What is asked.
        elements: Its elements, a line each, with numbers from 1.
        count: How many there are.
        reward: The task's raw reward; 0 until it is over.
        done: Whether it is over.
    """

    task: str
    elements: str
    count: int
    reward: float
    done: bool


class Browser:
    """A Chromium and the thread that speaks with it: playwright wants one, and no event loop in it."""

    def __init__(self, path: str | None) -> None:
        """Start it.

        Raises:
            SandboxError: It does not start.
        """
        self._pid = os.getpid()
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="browser")
        try:
            self._thread.submit(self._start, path).result()
        except Exception as error:
            self._thread.shutdown()
            text = str(error).strip().splitlines()
            raise SandboxError(f"A browser does not start: {text[0] if text else error!r}.") from error

    def _start(self, path: str | None) -> None:
        with needs("browser", "a browser"):
            from playwright.sync_api import sync_playwright
        folder = temporary_folder()
        script = folder / f"chromium-{threading.get_ident()}"
        script.write_text(_script(str(browser_of(path)), pages(), folder))
        script.chmod(stat.S_IRWXU)
        with environment_variable("TMPDIR", str(folder)):  # of the driver, which lives as long as the browser
            self._driver = sync_playwright().start()
        self._browser: Any = None
        try:
            self._browser = self._driver.chromium.launch(
                executable_path=str(script), headless=True, chromium_sandbox=True, args=_SWITCHES
            )
        except BaseException:
            self._driver.stop()
            raise

    def call(self, function: Callable[..., T], *arguments: Any) -> T:
        """Run a function in the browser's thread, and wait for it.

        Raises:
            ResourceError: The browser, or its driver, failed.
        """
        from playwright.sync_api import Error

        if self._pid != os.getpid():
            raise ResourceError("this process is a fork of the one that has started the browser.")
        try:
            asked = self._thread.submit(function, *arguments)
        except RuntimeError as error:
            raise ResourceError("the browser was closed.") from error
        try:
            return asked.result()
        except Error as error:
            raise ResourceError(f"the browser failed: {str(error).splitlines()[0]}") from error

    def open(self, task: str, seed: str) -> Page:
        """Begin a task in a context of its own."""
        return self.call(Page, self, self._browser, task, seed)

    def close(self) -> None:
        """End it."""
        if self._pid == os.getpid():
            self._thread.submit(self._stop)
            self._thread.shutdown()

    def _stop(self) -> None:
        try:
            self._browser.close()
        finally:
            self._driver.stop()


def _script(browser: str, html: Path, folder: Path) -> str:
    """A program that playwright starts as if it were the browser; descriptors 3 and 4 are its pipe."""
    import shlex

    seen = [*_SEEN, *_SEEN_FILES, str(Path(browser).resolve().parent)]
    line = ["bwrap", "--unshare-all", "--unshare-user", "--uid", "1000", "--gid", "1000", "--die-with-parent"]
    for path in seen:
        line += ["--ro-bind-try", path, path]
    line += ["--proc", "/proc", "--dev", "/dev", "--tmpfs", "/tmp", "--tmpfs", str(folder), "--tmpfs", "/home"]
    line += ["--clearenv"]
    variables = {"HOME": "/home", "PATH": "/usr/bin:/bin", "LANG": "C.UTF-8", "TMPDIR": str(folder), "TZ": "UTC"}
    for name, value in variables.items():
        line += ["--setenv", name, value]
    line += ["--ro-bind", str(html), str(html), "--chdir", "/home", browser]
    return f'#!/bin/sh\nexec {shlex.join(line)} "$@"\n'


_SCRIPT = Path(__file__).with_name("page.js")


class Page:
    """A task's page, in a context of its own; its methods run in the caller's thread and wait for the browser's."""

    def __init__(self, browser: Browser, chromium: Any, task: str, seed: str) -> None:
        """Load it and begin the episode; in the browser's thread."""
        self._browser = browser
        self._context = chromium.new_context(
            viewport=SIZE,
            offline=True,
            reduced_motion="reduce",
            locale="en-US",
            timezone_id="UTC",
            accept_downloads=False,
        )
        self._context.set_default_timeout(WAIT)
        self._context.add_init_script(path=_SCRIPT)
        self._context.clock.install(time=0)
        self._context.clock.pause_at(1)
        self._page = self._context.new_page()
        self._page.goto((pages() / "miniwob" / f"{task}.html").as_uri(), wait_until="load")
        # the clock was installed some milliseconds before it was stopped, and frames of animations count from there
        self._page.clock.run_for(BEGINNING - round(self._page.evaluate("() => performance.now()")))
        self._page.clock.set_system_time(BEGINNING / 1000)
        self._page.evaluate("seed => ragenPage.begin(seed)", seed)
        self.seen = self._look()

    def _look(self) -> Seen:
        self._page.clock.run_for(TICK)
        return Seen(**self._page.evaluate("() => ragenPage.look()"))

    def act(self, verb: str, number: int, text: str) -> bool:
        """Do something, and look; whether it could be done.

        Args:
            verb: ``"click"``, ``"type"``, ``"select"`` or ``"scroll"``.
            number: The element's.
            text: What to type, which option to choose (several with ``|`` between), ``"up"`` or ``"down"``.

        Raises:
            ResourceError: The browser failed.
        """
        return self._browser.call(self._act, verb, number, text)

    def _act(self, verb: str, number: int, text: str) -> bool:
        page = self._page
        if verb == "select":
            texts = [" ".join(each.split()) for each in text.split("|")]
            done = page.evaluate("([number, texts]) => ragenPage.choose(number, texts)", [number, texts])
        elif verb == "scroll":
            done = page.evaluate("([number, down]) => ragenPage.scroll(number, down)", [number, text == "down"])
        else:
            place = page.evaluate("([number, verb]) => ragenPage.find(number, verb)", [number, verb])
            done = place is not None
            if done and verb == "type":
                page.keyboard.press("Delete")
                page.keyboard.type(text)
            elif place:
                page.mouse.click(place["x"], place["y"])
        self.seen = self._look()
        return bool(done)

    def close(self) -> None:
        """Give the context back."""
        self._browser.call(self._context.close)
