"""What tests of environments share that keep something for the whole machine."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest


@pytest.fixture(scope="module")
def cache_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One for a module, since what is kept there takes seconds to make."""
    return tmp_path_factory.mktemp("cache")


@pytest.fixture(scope="module")
def module_cache(cache_folder: Path) -> Iterator[None]:
    """The machine's cache is the module's, for fixtures of the module as well."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("RAGEN_CACHE", str(cache_folder))
        yield


@pytest.fixture
def own_cache(cache_folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The machine's cache is the module's."""
    monkeypatch.setenv("RAGEN_CACHE", str(cache_folder))
