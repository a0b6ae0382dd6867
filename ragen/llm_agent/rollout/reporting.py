"""The page ``report.html`` of a rollout."""

from __future__ import annotations

import base64
import io
from typing import TYPE_CHECKING, Any

from ragen.config.loading import as_config
from ragen.errors import ConfigError, shown_path
from ragen.files import write_whole
from ragen.results.rows import PAGE, read_rows

if TYPE_CHECKING:
    from ragen.llm_agent.rollout.proxy import LLMAgentProxy
    from ragen.llm_agent.rollout.rollout_file import RolloutFile

MOST_IMAGES = 12_000_000  # characters of data URIs; further images are omitted


def write_report_of(proxy: LLMAgentProxy, file: RolloutFile) -> None:
    """Write ``report.html`` beside the trajectories, with the images that this process has.

    Raises:
        ConfigError: It cannot be written.
    """
    from ragen.results.page import render  # late, so that help comes at once

    path = file.path.with_name(PAGE)
    room = MOST_IMAGES if as_config(proxy.config).raw else 0  # the page has no more than the rows
    images: dict[int, list[list[str]]] = {}
    for state in proxy.rollout_states:
        shown = [list(map(_data_uri, turn.get("images", ()))) for turn in state["history"]]
        room -= sum(len(each) for turn in shown for each in turn)
        if any(shown) and room > 0:
            images[state["env_id"]] = shown
    try:
        write_whole(path, render(file.path, read_rows(file.path), images))
    except OSError as error:
        raise ConfigError(f"the report cannot be written to {path}: {error.strerror}.") from error
    print(f"report in {shown_path(path)}")


def _data_uri(image: Any) -> str:
    file = io.BytesIO()
    image.save(file, "PNG", optimize=False)
    return f"data:image/png;base64,{base64.b64encode(file.getvalue()).decode()}"
