"""The page ``report.html`` of a rollout."""

from __future__ import annotations

import base64
import io
from typing import TYPE_CHECKING, Any

from ragen.errors import ConfigError, shown_path
from ragen.files import write_whole
from ragen.results.rows import PAGE, read_rows
from ragen.settings import setting

if TYPE_CHECKING:
    from ragen.llm_agent.rollout.proxy import LLMAgentProxy
    from ragen.llm_agent.rollout.rollout_file import RolloutFile

MOST_IMAGES = 12_000_000  # characters of data URIs; further images are omitted


def write_report_of(proxy: LLMAgentProxy, mode: str, file: RolloutFile) -> None:
    """Write ``report.html`` beside the trajectories, those of earlier runs included.

    Where this run had nothing left to play, a page that is there stays: it has the times of the run that played.

    Args:
        proxy: After its rollout.
        mode: Which of its managers played.
        file: The run's file.

    Raises:
        ConfigError: It cannot be written.
    """
    from ragen.results.page import render  # late, so that help comes at once

    path = file.path.with_name(PAGE)
    if not proxy.rollout_states and path.exists():
        print(f"report in {shown_path(path)}, unchanged")
        return
    es_manager, _ = proxy.prepare(val=mode == "val")
    played: dict[int, dict[str, Any]] = {}
    room = MOST_IMAGES if setting(proxy.config, "raw", bool, True) else 0  # the page has no more than the rows
    for state in proxy.rollout_states:
        images = [list(map(_data_uri, turn.get("images", ()))) for turn in state["history"]]
        room -= sum(len(each) for turn in images for each in turn)
        env_id = state["env_id"]
        played[env_id] = {"worker": es_manager.home(env_id)} | ({"images": images} if any(images) and room > 0 else {})
    html = render(file.path, read_rows(file.path), played, proxy.timeline, proxy.seconds, es_manager.lane_stats())
    try:
        write_whole(path, html)
    except OSError as error:
        raise ConfigError(f"the report cannot be written to {path}: {error.strerror}.") from error
    print(f"report in {shown_path(path)}")


def _data_uri(image: Any) -> str:
    file = io.BytesIO()
    image.save(file, "PNG", optimize=False)
    return f"data:image/png;base64,{base64.b64encode(file.getvalue()).decode()}"
