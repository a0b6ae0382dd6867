"""Record a command in a terminal as an animated SVG: ``python docs/record.py FILE.svg COMMAND...``, with ``pyte``.

The command runs in a pseudo-terminal of ``SIZE``. Every state of the screen that stood for at least ``SHORTEST``
seconds becomes a frame, and the last one stays for ``REST`` seconds. Without animations, the last frame is shown.
"""

from __future__ import annotations

import os
import pty
import sys
import time
from html import escape
from itertools import groupby
from pathlib import Path
from select import select
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import pyte

SIZE = WIDE, HIGH = 112, 32  # characters
SHORTEST, REST = 0.1, 8.0  # seconds
FONT, LINE, LETTER = 14, 19, 8.43  # pixels
COLOURS = {"default": "#d7dae0", "cyan": "#56b6c2", "green": "#8cc265", "magenta": "#c678dd", "red": "#e05561"}
COLOURS |= {"brown": "#d18f52", "blue": "#4aa5f0", "black": "#7f848e", "white": "#ffffff", "brightblack": "#7f848e"}


def recorded(command: list[str]) -> list[tuple[float, str]]:
    """When each frame began, in seconds, and its lines as SVG; the last one is the command's end."""
    import pyte

    screen = pyte.Screen(*SIZE)
    stream = pyte.ByteStream(screen)
    stream.feed(f"\x1b[90m$\x1b[0m {' '.join(command)}\r\n".encode())
    frames, start = [(0.0, drawn(screen))], time.monotonic()
    child, descriptor = pty.fork()
    if not child:
        os.environ.update(TERM="xterm-256color", COLUMNS=str(WIDE), LINES=str(HIGH))
        os.execvp(command[0], command)
    while True:
        if select([descriptor], [], [], SHORTEST)[0]:
            try:
                data = os.read(descriptor, 1 << 16)
            except OSError:  # Linux's way to say that the other end is closed
                break
            if not data:
                break
            stream.feed(data)
        now, frame = time.monotonic() - start, drawn(screen)
        if frame != frames[-1][1]:
            frames = (
                [*frames[:-1], (frames[-1][0], frame)] if now - frames[-1][0] < SHORTEST else [*frames, (now, frame)]
            )
    os.waitpid(child, 0)
    return [*frames, (time.monotonic() - start, drawn(screen))]


def drawn(screen: pyte.Screen) -> str:
    """The lines of a screen as SVG texts, a span for each run of equal letters' looks."""
    lines = []
    for row in range(HIGH):
        cells = [screen.buffer[row][column] for column in range(WIDE)]
        if not "".join(cell.data for cell in cells).strip():
            continue
        spans, column = "", 0
        for (colour, is_bold), run in groupby(cells, key=lambda cell: (cell.fg, cell.bold)):
            text = "".join(cell.data for cell in run)
            look = f' fill="{COLOURS.get(colour, f"#{colour}")}"' + ' font-weight="bold"' * is_bold
            if text.strip():
                width = len(text) * LETTER
                spans += f'<tspan x="{16 + column * LETTER:.1f}" textLength="{width:.1f}"{look}>{escape(text)}</tspan>'
            column += len(text)
        lines.append(f'<text y="{30 + row * LINE}">{spans}</text>')
    return "\n".join(lines)


def animation(frames: list[tuple[float, str]]) -> str:
    """The frames as one SVG: each is visible in its time, and the last one whenever no animation runs."""
    length = frames[-1][0] + REST
    ends = [begin for begin, _ in frames[1:]] + [length]
    shown = [(begin / length, end / length, frame) for (begin, frame), end in zip(frames, ends, strict=True)]
    styles, groups = "", ""
    for number, (begin, end, frame) in enumerate(shown):
        is_last = number == len(shown) - 1
        visible = f"0%, {begin:.4%} {{ opacity: 0 }} {begin + 1e-6:.4%}, {end:.4%} {{ opacity: 1 }}"
        after = "" if is_last else f" {end + 1e-6:.4%}, 100% {{ opacity: 0 }}"
        styles += f"@keyframes f{number} {{ {visible}{after} }}\n"
        look = f"opacity: {int(is_last)}; animation: f{number} {length:.2f}s step-end infinite"
        groups += f'<g style="{look}">\n{frame}\n</g>\n'
    font = f"{FONT}px ui-monospace, Menlo, Consolas, 'DejaVu Sans Mono', monospace"
    width, height = round(32 + WIDE * LETTER), 30 + HIGH * LINE
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" xml:space="preserve">\n'
        f"<style>text {{ font: {font}; white-space: pre }}\n{styles}</style>\n"
        f'<rect width="{width}" height="{height}" rx="8" fill="#1e2127"/>\n{groups}</svg>\n'
    )


if __name__ == "__main__":
    Path(sys.argv[1]).write_text(animation(recorded(sys.argv[2:])), "utf-8")
