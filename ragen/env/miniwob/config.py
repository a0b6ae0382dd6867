"""The configuration of the MiniWoB++ environment: tasks, number of actions, browser."""

from __future__ import annotations

import re
from dataclasses import dataclass

from ragen.env.checks import check, or_null, some_of

# The tasks of the package miniwob 1.1, classified by playing each twice, in two processes.

PLAYABLE = re.findall(
    r"[\w-]+",
    """
    ascending-numbers book-flight book-flight-nodelay button-delay buy-ticket choose-date choose-date-easy
    choose-date-medium choose-date-nodelay choose-list click-button click-button-sequence click-checkboxes
    click-checkboxes-large click-checkboxes-soft click-checkboxes-transfer click-collapsible click-collapsible-2
    click-collapsible-2-nodelay click-collapsible-nodelay click-dialog click-dialog-2 click-link click-menu
    click-menu-2 click-option click-pie click-pie-nodelay click-scroll-list click-shades click-shape click-tab
    click-tab-2 click-tab-2-easy click-tab-2-hard click-tab-2-medium click-test click-test-2 click-test-transfer
    click-widget count-shape count-sides daily-calendar email-inbox email-inbox-delete email-inbox-forward
    email-inbox-forward-nl email-inbox-forward-nl-turk email-inbox-important email-inbox-nl-turk
    email-inbox-noscroll email-inbox-reply email-inbox-star-reply enter-date enter-password enter-text enter-text-2
    enter-text-dynamic enter-time find-greatest find-word focus-text focus-text-2 form-sequence form-sequence-2
    form-sequence-3 generate-number grid-coordinate guess-number hot-cold identify-shape login-user login-user-popup
    moving-items multi-layouts multi-orderings navigate-tree number-checkboxes odd-or-even order-food phone-book
    read-table read-table-2 scroll-text scroll-text-2 search-engine simon-says simple-algebra simple-arithmetic
    social-media social-media-all social-media-some stock-market text-transform tic-tac-toe unicode-test
    use-autocomplete use-autocomplete-nodelay use-spinner visual-addition
    """,
)
"""Tasks that play equally and can be done by clicking, typing, selecting and scrolling."""

OUT_OF_REACH = re.findall(
    r"[\w-]+",
    """
    bisect-angle chase-circle circle-center click-color copy-paste copy-paste-2 drag-box drag-circle drag-cube
    drag-items drag-items-grid drag-shapes drag-shapes-2 drag-single-shape drag-sort-numbers draw-circle draw-line
    find-midpoint highlight-text highlight-text-2 hover-shape resize-textarea right-angle sign-agreement terminal
    text-editor use-colorwheel use-colorwheel-2 use-slider use-slider-2
    """,
)
"""Tasks that play equally, but need dragging, drawing, hovering, text selection, or sight of what has no text."""


@dataclass
class MiniWobEnvConfig:
    """Configuration of :class:`~ragen.env.miniwob.env.MiniWobEnv`.

    Attributes:
        tasks: Names of tasks, such as ``click-button``, from which the seed draws one; None for all of
            :data:`~ragen.env.miniwob.config.PLAYABLE`.
        max_steps: Maximum number of actions per episode.
        browser_path: Path of a Chromium or Chrome; None for the system's.
        render_mode: ``"text"``.
    """

    tasks: list[str] | None = None
    max_steps: int = 10
    browser_path: str | None = None
    render_mode: str = "text"

    def __post_init__(self) -> None:
        """Check every value.

        Raises:
            ConfigError: A value is invalid, or a task does not exist.
        """
        check(self, tasks=or_null(some_of((*PLAYABLE, *OUT_OF_REACH))))
