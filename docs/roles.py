"""Docstrings as the site shows them: a cross-reference in Sphinx's form becomes a name set as code, and so on."""

from __future__ import annotations

import re
from typing import Any

from griffe import Extension, Object

ROLE = re.compile(r":\w+:`~?\.?([^`]+)`")


class PlainRoles(Extension):
    """Rewrites every docstring when it has been read."""

    def on_object(self, *, obj: Object, **_: Any) -> None:
        """See the class."""
        if obj.docstring is not None:
            plain = ROLE.sub(lambda found: f"`{found[1]}`", obj.docstring.value)
            obj.docstring.value = plain.replace("::\n\n", ":\n\n")
