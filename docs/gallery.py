"""Draws the pictures of the pages: ``python docs/gallery.py [NAME ...]`` writes ``docs/images/env_NAME.png``.

Each picture of the gallery is an environment's text after a reset, and after a few turns if that says more. Boards look
as in reports. ``report`` is the report of the README's rollout, ``docs/images/report.png``. The texts of all pictures
are in ``docs/images/texts.json``, so that a test sees a picture that the present version would draw otherwise. This
needs playwright and Chromium (``pip install -e '.[browser]'``). Environments that are not installed are left out.
"""

from __future__ import annotations

import base64
import json
import os
import shutil
import socket
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from html import escape
from pathlib import Path
from typing import Any, NamedTuple

from ragen.env.registry import resolve_env
from ragen.errors import RagenError

ROOT = Path(__file__).resolve().parents[1]
PAGE_FILES = ROOT / "ragen" / "results"
STYLE, SCRIPT = ((PAGE_FILES / f"page.{kind}").read_text("utf-8") for kind in ("css", "js"))
FOLDER = Path(__file__).with_name("images")
TEXTS = FOLDER / "texts.json"
REPORT = {"width": 1200, "height": 1000}  # pixels
WIDTH = 640  # pixels
MOST_LINES = 18  # of a text
PAGE = {"x": 0, "y": 0, "width": 160, "height": 210}  # pixels of a task of MiniWoB++


class Shown(NamedTuple):
    """The subject of a picture: an environment's type, its seed, what is played before, and its configuration."""

    env_type: str
    seed: int = 1
    actions: Sequence[Any] = ()
    config: dict[str, Any] = {}  # noqa: RUF012 - nothing writes to it


SHOWN = {
    "sokoban": Shown("sokoban", 3, (4, 1, 4)),
    "frozen_lake": Shown("frozen_lake", 3, (3, 3, 2)),
    "game_2048": Shown("game_2048", 3),
    "bandit": Shown("bandit", 3),
    "countdown": Shown("countdown", 3),
    "metamathqa": Shown("metamathqa", 3),
    "webshop": Shown("webshop", 3),
    "sudoku": Shown("sudoku", 3),
    "rubikscube": Shown("rubikscube", 3),
    "search": Shown("search", 3),
    "code": Shown("code", 3),
    "terminal": Shown("terminal", 3),
    "textworld": Shown("textworld", 1, ("go west",)),
    "alfworld": Shown("alfworld", 1, ("go to sofa 1",)),
    "miniwob": Shown("miniwob", 1),
    "openenv": Shown("openenv", 3, ("Right",)),
}


def main(names: Sequence[str]) -> int:
    """Draw some pictures, or all; the exit code: 1 if one could not be drawn."""
    from playwright.sync_api import sync_playwright

    code, texts = 0, json.loads(TEXTS.read_text("utf-8")) if TEXTS.exists() else {}
    with sync_playwright() as playwright, tempfile.TemporaryDirectory() as folder:
        browser = playwright.chromium.launch(executable_path=shutil.which("chromium"), args=["--no-sandbox"])
        for name in names or (*SHOWN, "report"):
            if name == "report":
                texts[name] = results(Path(folder))
                page = browser.new_page(viewport=REPORT, device_scale_factor=1)
                page.goto(f"file://{folder}/outputs/first/report.html")
                page.screenshot(path=FOLDER / "report.png")
                continue
            try:
                actions, texts[name], picture = seen(name)
            except (RagenError, ImportError) as error:
                print(f"{name}: {error}", file=sys.stderr)
                code = 1
                continue
            page = browser.new_page(viewport={"width": WIDTH, "height": 100}, device_scale_factor=1)
            page.set_content(card(actions, texts[name], picture))
            page.locator("main").screenshot(path=FOLDER / f"env_{name}.png")
        browser.close()
    TEXTS.write_text(json.dumps(texts, indent=1, sort_keys=True) + "\n", "utf-8")
    return code


def results(folder: Path) -> list[str]:
    """The lines of the results of the README's rollout, which leaves its report in a folder."""
    environ = os.environ | {"PYTHONPATH": str(ROOT), "COLUMNS": "1000"}
    ragen = partial(subprocess.run, cwd=folder, env=environ, check=True, text=True)
    play = [sys.executable, "-m", "ragen", "rollout", "output_dir=outputs/first"]
    told = ragen(play, stdout=subprocess.PIPE, stderr=subprocess.STDOUT).stdout
    lines = [line.rstrip() for line in told.splitlines()]
    ragen([sys.executable, "-m", "ragen", "report", "outputs/first"], stdout=subprocess.DEVNULL)
    begin = lines.index("Results") + 1
    return lines[begin : begin + 9]  # a head, seven tags, and all of them


def seen(name: str) -> tuple[list[str], list[str], bytes]:
    """The actions that were played, what the environment showed before and after each, and a web page's picture."""
    what = SHOWN[name]
    with served(what) as config:
        env_class, config_class = resolve_env(what.env_type)
        env = env_class(config_class(**config))
        try:
            env.reset(seed=what.seed)
            views = [str(env.render())]
            for action in what.actions:
                env.step(action)
                views.append(str(env.render()))
            tab = env._page if name == "miniwob" else None
            picture = tab._browser.call(partial(tab._page.screenshot, clip=PAGE)) if tab is not None else b""
        finally:
            env.close()
    names = getattr(env.config, "action_lookup", None) or {}
    return [str(names.get(action, action)) for action in what.actions], views, picture


@contextmanager
def served(what: Shown) -> Iterator[dict[str, Any]]:
    """The configuration of an environment; that of ``openenv`` names a server, which there is within the block."""
    if what.env_type != "openenv":
        yield what.config
        return
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    command = [sys.executable, "-m", "ragen", "serve", "--env", "frozen_lake", "--port", str(port)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as server:
        try:
            assert server.stdout is not None
            server.stdout.readline()  # its address: it listens
            yield {"url": f"http://127.0.0.1:{port}"}
        finally:
            server.terminate()


def card(actions: Sequence[str], views: Sequence[str], picture: bytes = b"") -> str:
    """The texts of an environment, as a page whose script, that of reports, draws the boards."""
    said = ["", *(f"<p><b>&gt; {escape(action)}</b></p>" for action in actions)]
    parts = "".join(f"<div>{each}<pre>{escape(cut(view))}</pre></div>" for each, view in zip(said, views, strict=True))
    image = f'<img width="240" src="data:image/png;base64,{base64.b64encode(picture).decode()}">' if picture else ""
    return (
        f"<!DOCTYPE html><style>{STYLE} {_STYLE}</style><main>{image}{parts}</main><script>{SCRIPT} {_SCRIPT}</script>"
    )


def cut(text: str) -> str:
    """The beginning of a text."""
    lines = text.strip().splitlines()
    return "\n".join(lines[:MOST_LINES] + ["..."] * (len(lines) > MOST_LINES))


_STYLE = (
    "body { background: var(--card); }"
    "main { display: inline-flex; gap: 22px; padding: 14px 18px; align-items: start; }"
    "pre { max-height: none; margin: 0; font-size: 14px; } p { margin: 8px 0; } .grid { margin: 0; }"
)

_SCRIPT = """
const texts = Array.from(document.querySelectorAll("pre"));
for (const each of texts) each.replaceWith(withBoards(each.textContent));
if (!document.querySelector(".grid")) document.querySelector("main").style.flexDirection = "column";
"""

if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
