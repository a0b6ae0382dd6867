"""Packages whose ``__init__`` workers do not run, unless an attribute is read that no submodule has.

A package that imports much, such as a trainer or all of its environments, makes every worker slow to start, although a
worker needs one submodule of it. In workers such a package is a module with a path and nothing else; the first
attribute that is neither there nor a submodule runs the ``__init__`` after all.
"""

from __future__ import annotations

import importlib
import importlib.util
import sys
from types import ModuleType
from typing import Any


class _Bare(ModuleType):
    def __getattr__(self, name: str) -> Any:
        # Python and pickle ask every module for names such as `__path__`: those must not run what is left out.
        if name.startswith("__") or "_is_run" in self.__dict__:
            raise AttributeError(f"module {self.__name__!r} has no attribute {name!r}")
        submodule = f"{self.__name__}.{name}"
        if importlib.util.find_spec(submodule) is not None:
            return importlib.import_module(submodule)
        self.__dict__["_is_run"] = True  # before it is run: an `__init__` asks its own module for what it lacks
        assert self.__spec__ is not None and self.__spec__.loader is not None
        self.__spec__.loader.exec_module(self)
        return getattr(self, name)


def make(*names: str) -> None:
    """Put bare modules in the places of packages that are not imported yet, parents first."""
    for name in names:
        if name in sys.modules or (spec := importlib.util.find_spec(name)) is None:
            continue
        module = sys.modules[name] = _Bare(name)
        module.__spec__, module.__file__, module.__package__ = spec, spec.origin, name
        module.__loader__, module.__path__ = spec.loader, spec.submodule_search_locations or []
        parent, _, child = name.rpartition(".")
        if parent in sys.modules:
            setattr(sys.modules[parent], child, module)
