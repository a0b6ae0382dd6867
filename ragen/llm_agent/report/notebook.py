"""Trajectories and rollouts in a notebook: what ``manager.show`` gives, drawn where it is the last line of a cell.

No script, nothing loaded, and whatever an environment or a model wrote is text, as on the page.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from ragen.llm_agent.report.episode import Episode
from ragen.llm_agent.report.text import shown
from ragen.llm_agent.report.trajectory import TrajectoryWriter

MOST_SHOWN = 50  # trajectories of a rollout that open
STYLE = """
.ragen-view { font: 14px/1.5 system-ui, sans-serif; }
.ragen-view summary { cursor: pointer; padding: 3px 0; } .ragen-view summary span { margin-right: 12px; }
.ragen-view .turn { border-top: 1px solid #8884; padding: 8px 0; display: grid; gap: 14px;
  grid-template-columns: minmax(0, 2fr) minmax(0, 3fr); }
.ragen-view .turn h4 { grid-column: 1 / -1; margin: 0; font-size: 13px; opacity: .7; }
.ragen-view pre, .ragen-view .text { margin: 0 0 6px; white-space: pre-wrap; overflow-wrap: anywhere;
  unicode-bidi: isolate; max-height: 320px; overflow: auto; text-align: left; }
.ragen-view .text { padding: 4px 8px; border-radius: 6px; border: 1px solid #8884; }
.ragen-view .thought { background: #8a6cf022; } .ragen-view .answer { background: #2fae6a22; }
.ragen-view .text::before { content: attr(data-label); display: block; font-size: 11px; opacity: .6; }
.ragen-view .chips span { background: #2fae6a22; border-radius: 10px; padding: 0 9px; margin-right: 5px; }
.ragen-view dl { display: flex; flex-wrap: wrap; gap: 2px 14px; margin: 0; font-size: 12px; }
.ragen-view dl div { display: flex; gap: 5px; } .ragen-view dt { opacity: .6; } .ragen-view dd { margin: 0; }
.ragen-view .grid { display: inline-grid; border: 1px solid #8884; }
.ragen-view .grid span { width: 22px; height: 22px; font: 13px/22px monospace; text-align: center; color: #1d2430; }
.ragen-view .c0 { background: #c9ced6; } .ragen-view .c1 { background: #fdfdfb; }
.ragen-view .c2 { background: #f6c177; }
.ragen-view .c3 { background: #9ccfd8; } .ragen-view .c4 { background: #b4d6a4; }
.ragen-view .c5 { background: #e9a3a3; }
.ragen-view .c6 { background: #c9b6ea; } .ragen-view .c7 { background: #f1e38b; }
.ragen-view .bad, .ragen-view .no { color: #d04437; } .ragen-view .yes { color: #1a8f56; }
.ragen-view .code { font: 11px monospace; background: #ffe3a3; color: #533c00; }
.ragen-view img { min-width: 96px; image-rendering: pixelated; }
"""


@dataclass(frozen=True)
class TrajectoryView:
    """A trajectory to look at.

    Attributes:
        episode: What is shown; its turns are those of the manager's cache, so a later look shows later turns.
    """

    episode: Episode

    def __repr__(self) -> str:
        """A line of text, for where there is no HTML."""
        return f"<trajectory {_line(self.episode)}>"

    def _repr_html_(self) -> str:
        """Every turn of it."""
        return _framed(f"<b>{_head(self.episode)}</b>{TrajectoryWriter().body(self.episode)}")


@dataclass(frozen=True)
class RolloutView:
    """A rollout to look at.

    Attributes:
        episodes: Its trajectories.
    """

    episodes: Sequence[Episode]

    def __repr__(self) -> str:
        """A line for each trajectory, for where there is no HTML."""
        return "\n".join(["<rollout", *(f"  {_line(episode)}" for episode in self.episodes), ">"])

    def _repr_html_(self) -> str:
        """A line for each trajectory, which opens."""
        writer, some = TrajectoryWriter(), self.episodes[:MOST_SHOWN]
        rows = "".join(
            f"<details><summary>{_head(episode)}</summary>{writer.body(episode)}</details>" for episode in some
        )
        left = len(self.episodes) - len(some)
        more = f"<p>{left} more: show(env_id) shows one of them.</p>" if left else ""
        return _framed(f"{rows}{more}")


def _framed(html: str) -> str:
    return f'<div class="ragen-view"><style>{STYLE}</style>{html}</div>'


def _words(episode: Episode) -> list[str]:
    turns = len(episode.turns)
    return [
        episode.tag,
        f"env {episode.state['env_id']}",
        f"group {episode.state['group_id']}" + ("" if episode.seed is None else f", seed {episode.seed}"),
        episode.told_outcome,
        f"reward {episode.reward:.4g}",
        f"{turns} {'turn' if turns == 1 else 'turns'}",
    ]


def _line(episode: Episode) -> str:
    return ", ".join(_words(episode))


def _head(episode: Episode) -> str:
    return "".join(f"<span>{shown(words, 200)}</span>" for words in _words(episode))
