"""A Chromium without a window, driven over two pipes; a test that needs one is skipped where none is installed."""

import contextlib
import fcntl
import json
import os
import shutil
import subprocess
import time

NAMES = ("chromium", "chromium-browser", "google-chrome", "chrome")
_SWITCHES = (
    *("--headless", "--no-sandbox", "--disable-gpu", "--hide-scrollbars", "--no-first-run"),
    *("--disable-background-networking", "--disable-component-update", "--disable-extensions", "--mute-audio"),
    "--remote-debugging-pipe",
)


def path():
    """Where one is installed; None if none is."""
    return next(filter(None, map(shutil.which, NAMES)), None)


class Page:
    """A tab."""

    def __init__(self, send, session):
        self._send, self._session = send, session
        self("Page.enable")
        self("Runtime.enable")
        self("Log.enable")

    def __call__(self, method, **parameters):
        return self._send(method, parameters, self._session)

    def look(self, width, height=900, dark=False):
        """The size of the window, and whether the reader wants it dark."""
        self("Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=False)
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        self("Emulation.setEmulatedMedia", features=[scheme])

    def open(self, address):
        """Load a page, until its script has run."""
        self("Page.navigate", url=address)
        self.until("document.readyState === 'complete' && location.href !== 'about:blank'")

    def value(self, script):
        """What an expression is, promises waited for."""
        told = self("Runtime.evaluate", expression=script, returnByValue=True, awaitPromise=True)
        assert "exceptionDetails" not in told, told["exceptionDetails"]
        return told["result"].get("value")

    def until(self, script, seconds=10):
        """Wait until an expression is true."""
        end = time.monotonic() + seconds
        while not self.value(f"Boolean({script})"):
            assert time.monotonic() < end, f"not in {seconds} s: {script}"
            time.sleep(0.02)


class _Pipe:
    """Messages of DevTools, each ended by a zero byte."""

    def __init__(self, reading, writing):
        self._reading, self._writing, self._rest, self._last = reading, writing, b"", 0
        self.complaints = []

    def __call__(self, method, parameters, session=None):
        self._last += 1
        message = {"id": self._last, "method": method, "params": parameters}
        if session is not None:
            message["sessionId"] = session
        os.write(self._writing, json.dumps(message).encode() + b"\0")
        while True:
            told = self._next()
            if told.get("method") == "Log.entryAdded" and told["params"]["entry"]["level"] == "error":
                self.complaints.append(told["params"]["entry"]["text"])
            if told.get("method") == "Runtime.exceptionThrown":
                self.complaints.append(str(told["params"]["exceptionDetails"]))
            if told.get("id") == self._last:
                assert "error" not in told, told["error"]
                return told["result"]

    def _next(self):
        while b"\0" not in self._rest:
            data = os.read(self._reading, 1 << 20)
            assert data, "the browser has ended"
            self._rest += data
        message, self._rest = self._rest.split(b"\0", 1)
        return json.loads(message)


@contextlib.contextmanager
def chromium(folder):
    """A tab of a fresh browser, whose profile is in a folder, and a list of what the browser complains of."""
    inward, outward = os.pipe(), os.pipe()
    ends = [fcntl.fcntl(end, fcntl.F_DUPFD, 10) for end in (inward[0], outward[1])]

    def become_3_and_4():  # from and to which it speaks
        for number, end in enumerate(ends, 3):
            os.dup2(end, number)

    process = subprocess.Popen(
        [path(), *_SWITCHES, f"--user-data-dir={folder}", "about:blank"],
        pass_fds=(3, 4),
        preexec_fn=become_3_and_4,
        stderr=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        start_new_session=True,
    )
    for end in (inward[0], outward[1], *ends):
        os.close(end)
    send = _Pipe(outward[0], inward[1])
    try:
        target = send("Target.createTarget", {"url": "about:blank"})["targetId"]
        session = send("Target.attachToTarget", {"targetId": target, "flatten": True})["sessionId"]
        yield Page(send, session), send.complaints
        with contextlib.suppress(AssertionError, OSError):
            send("Browser.close", {})
    finally:
        os.close(inward[1])
        os.close(outward[0])
        try:
            process.wait(10)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, 9)
            process.wait()
