"""The page's style and script, and the policy that lets nothing else run."""

from __future__ import annotations

import base64
import hashlib
from importlib.resources import files

_FOLDER = files("ragen.llm_agent.report")
STYLE = _FOLDER.joinpath("page.css").read_text("utf-8")
SCRIPT = _FOLDER.joinpath("page.js").read_text("utf-8")


def policy(is_live: bool = False) -> str:
    """The content security policy: this script, these styles, images that the page itself holds, and nothing else.

    Args:
        is_live: Whether the script may ask the server that the page came from.
    """
    digest = base64.b64encode(hashlib.sha256(SCRIPT.encode()).digest()).decode()
    connect = "connect-src 'self'; " if is_live else ""
    return (
        f"default-src 'none'; script-src 'sha256-{digest}'; style-src 'unsafe-inline'; img-src data:; {connect}"
        "base-uri 'none'; form-action 'none'"
    )
