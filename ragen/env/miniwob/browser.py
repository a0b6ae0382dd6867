"""One Chromium for all environments of a process, inside bubblewrap and without a network.

::

    worker process                  | playwright's driver (node) | bubblewrap: own processes, users, network (none)
    Browser: its own thread -------- pipe --------------------------- Chromium, with its own sandbox for pages
      Page: one context each        |                            |   its profile, in memory

The profile is in an in-memory file system that disappears with the browser, and the browser ends with its worker, even
if the worker is killed. Chromium sees the pages, its own files and fonts, and nothing else of the machine. It never
runs as root, and never without its own sandbox.
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

from envlanes.temporary import temporary_folder
from ragen.env.resources import Lease, environment_variable, worker_resource
from ragen.errors import ResourceError, SandboxError, install_command
from ragen.extras import missing as missing_packages
from ragen.extras import needs, package_folder

T = TypeVar("T")

NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
"""The programs to look for on the path if a configuration names no browser."""

SIZE = {"width": 500, "height": 400}
WAIT = 120_000  # milliseconds for one request to a page; a busy machine may need half a minute
BEGINNING = 10_000  # milliseconds on a page's clock when its episode begins
TICK = 1000  # milliseconds by which each action advances the page's clock
_INSTALL = "apt-get install chromium bubblewrap"
_SEEN = ("/usr", "/lib", "/lib64", "/bin", "/sbin", "/opt/google", "/etc/fonts", "/etc/alternatives", "/etc/chromium")
_SEEN_FILES = ("/etc/chromium.d", "/etc/ld.so.cache", "/etc/ld.so.conf", "/etc/ld.so.conf.d", "/etc/localtime")
_SWITCHES = ["--disable-gpu", "--disable-dev-shm-usage", "--mute-audio", "--force-device-scale-factor=1"]


def pages() -> Path:
    """The folder of MiniWoB++'s pages, in the package ``miniwob``, which is not imported.

    Raises:
        MissingExtraError: The package is not installed.
    """
    with needs("browser", "a page of MiniWoB++"):
        return package_folder("miniwob") / "html"


def browser_of(path: str | None) -> str | None:
    """The browser at a path, or the system's if the path is None; None if there is none."""
    if path is not None:
        return path if os.access(path, os.X_OK) else None
    return next(filter(None, map(shutil.which, NAMES)), None)


def missing(path: str | None = None) -> list[str]:
    """Missing parts of this machine, each with the command that installs it; nothing is started."""
    if sys.platform != "linux":
        return [f"Linux: this is {sys.platform}, which has no namespaces to isolate a browser"]
    lacks = [f"{name}: {install_command('browser')}" for name in missing_packages("browser")]
    if browser_of(path) is None:
        lacks.append(f"{path or 'Chromium'}: {_INSTALL}")
    if shutil.which("bwrap") is None:
        lacks.append(f"bubblewrap: {_INSTALL}")
    return lacks


def require_browser(path: str | None) -> None:
    """Check the requirements of a browser; nothing is started.

    Raises:
        SandboxError: Something is missing.
    """
    if lacks := missing(path):
        raise SandboxError(f"A browser cannot run here. Missing: {'; '.join(lacks)}.")


def hold_browser(path: str | None) -> Lease[Browser]:
    """A lease of this process's browser, which is started if there is none.

    Raises:
        SandboxError: A browser cannot run here.
    """
    require_browser(path)
    return worker_resource(("chromium", path), lambda: Browser(path), Browser.close)


@dataclass(frozen=True)
class Seen:
    """The visible state of a page.

    Attributes:
        task: The task's text.
        elements: The visible elements, one per line, numbered from 1.
        count: Number of elements.
        reward: The task's raw reward; 0 until the task is over.
        done: Whether the task is over.
    """

    task: str
    elements: str
    count: int
    reward: float
    done: bool


class Browser:
    """A Chromium and the thread that drives it: playwright needs one thread, without an event loop."""

    def __init__(self, path: str | None) -> None:
        """Start the browser.

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
            raise SandboxError(f"The browser does not start: {text[0] if text else error!r}.") from error

    def _start(self, path: str | None) -> None:
        with needs("browser", "a browser"):
            from playwright.sync_api import sync_playwright
        folder = temporary_folder()
        script = folder / f"chromium-{threading.get_ident()}"
        script.write_text(_script(str(browser_of(path)), pages(), folder))
        script.chmod(stat.S_IRWXU)
        with environment_variable("TMPDIR", str(folder)):  # for the driver, which lives as long as the browser
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
        """Run a function in the browser's thread and return its result.

        Raises:
            ResourceError: The browser or its driver failed.
        """
        from playwright.sync_api import Error

        if self._pid != os.getpid():
            raise ResourceError("this process is a fork of the one that started the browser.")
        try:
            asked = self._thread.submit(function, *arguments)
        except RuntimeError as error:
            raise ResourceError("the browser was closed.") from error
        try:
            return asked.result()
        except Error as error:
            raise ResourceError(f"the browser failed: {str(error).splitlines()[0]}") from error

    def open(self, task: str, seed: str) -> Page:
        """Open a task's page in a new context."""
        return self.call(Page, self, self._browser, task, seed)

    def close(self) -> None:
        """End the browser."""
        if self._pid == os.getpid():
            self._thread.submit(self._stop)
            self._thread.shutdown()

    def _stop(self) -> None:
        try:
            self._browser.close()
        finally:
            self._driver.stop()


def _script(browser: str, html: Path, folder: Path) -> str:
    """A script that playwright starts in place of the browser; descriptors 3 and 4 are its pipe."""
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
    """A task's page in its own context; methods run in the caller's thread and wait for the browser's."""

    def __init__(self, browser: Browser, chromium: Any, task: str, seed: str) -> None:
        """Load the page and begin the episode; called in the browser's thread."""
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
        # The clock ran for some milliseconds between install and pause, and animation frames count from its start.
        self._page.clock.run_for(BEGINNING - round(self._page.evaluate("() => performance.now()")))
        self._page.clock.set_system_time(BEGINNING / 1000)
        self._page.evaluate("seed => ragenPage.begin(seed)", seed)
        self.seen = self._look()

    def _look(self) -> Seen:
        self._page.clock.run_for(TICK)
        return Seen(**self._page.evaluate("() => ragenPage.look()"))

    def act(self, verb: str, number: int, text: str) -> bool:
        """Carry out an action and update :attr:`seen`.

        Args:
            verb: ``"click"``, ``"type"``, ``"select"`` or ``"scroll"``.
            number: The number of the element.
            text: The text to type, the option to select (several separated by ``|``), or ``"up"`` or ``"down"``.

        Returns:
            Whether the element accepted the action.

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
        """Close the context."""
        self._browser.call(self._context.close)
