"""``report=live``: the report of a running rollout or training, served to browsers on this machine.

::

    rollout (main thread)                      server (uvicorn, a thread)          browser
      add(episodes that are over) ----------->   episodes                 <-----   GET /          the page
      beat()  lanes, now and then  ---------->   lanes                    <-----   GET /news      rows since, parts
      show(another report)  ----------------->   its edition
      close() ------------------------------->   is over                  <-----   GET /body/17   a trajectory

It listens only on the loopback address, and requires the token that is part of the printed address; any request without
it gets a 403. The page is that of ``report.html``, whose script polls for news every second.
"""

from __future__ import annotations

import asyncio
import secrets
import socket
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from typing import Any, Self

from ragen.errors import ConfigError
from ragen.llm_agent.config.report import check_live
from ragen.llm_agent.report.contents import Episode, Report
from ragen.llm_agent.report.page import framed, head_of, parts_of
from ragen.llm_agent.report.trajectories import FILTERS, NOUN, TrajectoryWriter, index_of, row_of

PARTS = ("totals", "results", "history", "failures", "lanes")
HOST = "127.0.0.1"
MOST_ROWS = 2000  # rows per answer
_BEAT_S, _RATE_S = 1.0, 10.0
_SHARE = 0.05  # fraction of time spent rendering parts
_LAST_NEWS_S = 2.0  # seconds that browsers have to fetch the last news
_START_S = 10.0
_ALL_IMAGES = 1 << 40


class LiveReport:
    """Serves the report of a running rollout. A context manager: it serves within the block.

    Attributes:
        address: The address with the token; empty before it serves.
    """

    def __init__(self, report: Report, words: Callable[[], str], replies: Callable[[], int] | None = None) -> None:
        """Prepare the report before anything is played.

        Args:
            report: A report with ``about``, and the episodes of an earlier run.
            words: Returns the progress in a line; called from another thread.
            replies: Returns the number of replies; None if they are not counted.
        """
        self.address = ""
        self._report = report
        self._words, self._replies = words, replies
        self._episodes = list(report.episodes)
        self._edition = 0  # number of the report
        self._lanes: Sequence[Any] = ()
        self._writer = TrajectoryWriter(_ALL_IMAGES)
        self._writing = threading.Lock()
        self._token = secrets.token_urlsafe(24)
        self._rates: deque[tuple[float, int]] = deque()
        self._parts: dict[str, str] = {}
        self._parts_of, self._parts_due = (-1, -1), 0.0  # an edition, and how many episodes
        self._beat_at = self._asked_at = 0.0
        self._is_over = False
        self._has_told_end = threading.Event()
        self._server: Any = None
        self._thread: threading.Thread | None = None

    # Called by the run

    def add(self, episodes: Iterable[Episode]) -> None:
        """Show finished trajectories."""
        self._episodes.extend(episodes)

    def show(self, report: Report) -> None:
        """Replace the report; browsers reload the page."""
        self._report, self._episodes, self._lanes = report, list(report.episodes), report.lanes
        self._edition += 1

    def beat(self, lanes: Callable[[], Sequence[Any]]) -> None:
        """Update the statistics of workers now and then.

        Args:
            lanes: Returns the manager's ``LaneStats``; called in this thread.
        """
        now = time.monotonic()
        if now - self._beat_at >= _BEAT_S:
            self._beat_at, self._lanes = now, lanes()

    def __enter__(self) -> Self:
        """Begin to serve.

        Raises:
            ConfigError: The web server is not installed, or no port is available.
        """
        check_live()
        import uvicorn

        try:
            listening = socket.create_server((HOST, 0))
        except OSError as error:
            raise ConfigError(f"report=live cannot listen on {HOST}: {error.strerror}; use report=true.") from error
        config = uvicorn.Config(
            self._app(), log_config=None, access_log=False, lifespan="off", timeout_graceful_shutdown=1
        )
        self._server = uvicorn.Server(config)
        self._thread = threading.Thread(target=self._serve, args=(listening,), name="ragen-live-report", daemon=True)
        self._thread.start()
        self.address = f"http://{HOST}:{listening.getsockname()[1]}/?token={self._token}"
        return self

    def _serve(self, listening: socket.socket) -> None:
        with listening:
            asyncio.run(self._server.serve(sockets=[listening]))

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        """End it: at once if the run was stopped; otherwise browsers can still fetch the end."""
        self._is_over = True
        if kind is None and time.monotonic() - self._asked_at < 2 * _LAST_NEWS_S:
            self._has_told_end.wait(_LAST_NEWS_S)
        self._server.should_exit = True
        if self._thread is not None:
            self._thread.join(_START_S)

    # Called by browsers

    def _app(self) -> Any:
        from starlette.applications import Starlette
        from starlette.middleware import Middleware
        from starlette.responses import HTMLResponse, JSONResponse
        from starlette.routing import Route

        def page(_: Any) -> HTMLResponse:
            return HTMLResponse(self._page(), headers={"Cache-Control": "no-store"})

        def news(request: Any) -> JSONResponse:
            since = request.query_params.get("since", "0")
            if not since.isdecimal():
                return JSONResponse({"error": "since must be the number of known rows"}, 400)
            return JSONResponse(self._news(int(since)))

        def body(request: Any) -> HTMLResponse:
            number = request.path_params["number"]
            if number >= len(self._episodes):
                return HTMLResponse("", 404)
            with self._writing:
                return HTMLResponse(self._writer.body(self._episodes[number]))

        routes = [Route("/", page), Route("/news", news), Route("/body/{number:int}", body)]
        return Starlette(routes=routes, middleware=[Middleware(_WithToken, token=self._token)])

    def _page(self) -> str:
        self._asked_at = time.monotonic()
        parts = "".join(f'<div id="{name}"></div>' for name in PARTS)
        head = f'{head_of(self._report)}<p id="status" role="status"></p>{parts}'
        rows = f'<h2>Trajectories</h2><div id="list"></div>{index_of(NOUN, FILTERS, [])}'
        return framed(self._report.title, f"{head}{rows}", live=self._token)

    def _news(self, since: int) -> dict[str, Any]:
        self._asked_at = time.monotonic()
        is_over, edition = self._is_over, self._edition  # read first, so that the rest is complete if the run is over
        episodes = list(self._episodes)
        rows = [row_of(episode).plain(FILTERS) for episode in episodes[since : since + MOST_ROWS]]
        is_all = since + len(rows) >= len(episodes)
        told = {
            "rows": rows,
            "status": f"{self._words()}{self._rate()}{'; the run has finished' if is_over else ''}",
            "edition": edition,
            "parts": self._changed_parts(edition, episodes, is_over),
            "is_over": is_over and is_all,
            "has_more": not is_all,
        }
        if told["is_over"]:
            self._has_told_end.set()
        return told

    def _rate(self) -> str:
        """Replies per second over the last seconds, after a comma."""
        if self._replies is None:
            return ""
        now, rates = time.monotonic(), self._rates
        rates.append((now, self._replies()))
        while now - rates[0][0] > _RATE_S:
            rates.popleft()
        (start, first), (end, last) = rates[0], rates[-1]
        return f", {(last - first) / (end - start) if end > start else 0.0:.1f} replies/s"

    def _changed_parts(self, edition: int, episodes: Sequence[Episode], is_over: bool) -> dict[str, str]:
        """The parts above the list; rendered again after an episode ends, at a limited rate."""
        now = time.monotonic()
        known, wanted = self._parts_of, (edition, len(episodes))
        if is_over or known[0] != edition or (now >= self._parts_due and known != wanted):
            report = replace(self._report, episodes=episodes, lanes=self._lanes, timeline=None)
            written = parts_of(report)
            self._parts = {name: written[name] for name in PARTS}
            self._parts_of = wanted
            self._parts_due = time.monotonic() + (time.monotonic() - now) / _SHARE
        return self._parts


class _WithToken:
    """Refuses requests without the token."""

    def __init__(self, app: Any, token: str) -> None:
        self._app, self._token = app, token.encode()

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        from starlette.requests import HTTPConnection
        from starlette.responses import PlainTextResponse

        shown = HTTPConnection(scope).query_params.get("token", "").encode()
        if secrets.compare_digest(shown, self._token):
            await self._app(scope, receive, send)
        else:
            refusal = PlainTextResponse(
                "This report requires its token, which was printed at the start of the run.\n", 403
            )
            await refusal(scope, receive, send)
