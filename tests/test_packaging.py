"""What a user installs: the wheel has all that the package reads, and the pins and CI script fit the package."""

import importlib.metadata
import os
import re
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest
from packaging.requirements import Requirement

from ragen.errors import DISTRIBUTION
from ragen.extras import EXTRAS

ROOT = Path(__file__).resolve().parents[1]
NOT_SHIPPED = {"__pycache__"}


def run(*command: str, cwd: Path, **environment: str) -> subprocess.CompletedProcess:
    env = {**os.environ, "PYTHONDONTWRITEBYTECODE": "1", **environment}
    return subprocess.run(command, cwd=cwd, env=env, capture_output=True, text=True, timeout=100, check=False)


@pytest.fixture(scope="module")
def wheel(tmp_path_factory) -> Path:
    """The built wheel; everything that building leaves behind goes to a temporary folder."""
    folder = tmp_path_factory.mktemp("wheel")
    built = run(
        sys.executable, "setup.py", "-q", "egg_info", "--egg-base", str(folder), "build", "--build-base",
        str(folder / "build"), "bdist_wheel", "--dist-dir", str(folder), cwd=ROOT,
    )  # fmt: skip
    assert built.returncode == 0, built.stderr
    (path,) = folder.glob("*.whl")
    return path


@pytest.fixture(scope="module")
def installed(wheel, tmp_path_factory) -> Path:
    """A folder with the wheel's content, as an installation has it."""
    folder = tmp_path_factory.mktemp("site-packages")
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(folder)
    return folder


def test_the_wheel_has_every_file_of_the_package_and_nothing_else(wheel):
    with zipfile.ZipFile(wheel) as archive:
        names = set(archive.namelist())
    here = {
        path.relative_to(ROOT).as_posix()
        for path in (ROOT / "ragen").rglob("*")
        if path.is_file() and not NOT_SHIPPED & set(path.parts)
    }
    assert here - names == set()
    assert {top for name in names if not (top := name.partition("/")[0]).endswith(".dist-info")} == {"ragen"}


def test_the_metadata_is_what_a_package_index_wants(installed):
    (info,) = installed.glob("*.dist-info")
    metadata = importlib.metadata.Distribution.at(info).metadata
    assert metadata["Name"] == DISTRIBUTION == "ragen-lanes"
    assert re.fullmatch(r"\d+\.\d+\.\d+", metadata["Version"])
    assert metadata["License-Expression"] == "MIT" and metadata.get_all("License-File") == ["LICENSE"]
    assert metadata["Requires-Python"] == ">=3.11"
    assert metadata["Summary"] and metadata["Keywords"]
    assert any(line.startswith("Programming Language :: Python :: 3.11") for line in metadata.get_all("Classifier"))
    assert {*EXTRAS, "test", "dev", "docs"} == set(metadata.get_all("Provides-Extra"))


def test_everything_that_the_package_and_its_tests_need_is_pinned(installed):
    (info,) = installed.glob("*.dist-info")
    wanted = [Requirement(line) for line in importlib.metadata.Distribution.at(info).requires or []]
    needed = {
        r.name.lower() for r in wanted if r.marker is None or any(f'"{e}"' in str(r.marker) for e in ("test", "dev"))
    }
    pins = (ROOT / "constraints.txt").read_text("utf-8").splitlines()
    pinned = {line.split("==")[0] for line in pins if "==" in line}
    assert needed - pinned == {"envlanes"}
    assert "torch==2.13.0" in pins
    assert all("==" in line for line in pins if line and not line.startswith("#"))


def test_an_installed_command_works_from_an_empty_folder(installed, tmp_path):
    (info,) = installed.glob("*.dist-info")
    scripts = {point.name: point.value for point in importlib.metadata.Distribution.at(info).entry_points}
    assert scripts == {"ragen": "ragen.cli.main:main"}
    for words, told in {("--version",): "ragen ", ("list", "configurations"): "_2_sokoban"}.items():
        ran = run(sys.executable, "-m", "ragen", *words, cwd=tmp_path, PYTHONPATH=str(installed))
        assert ran.returncode == 0 and told in ran.stdout, ran.stderr
    assert not list(tmp_path.iterdir())


OTHER_PROJECT = re.compile(r"(?:pip|uv|pipx|poetry)\b[^\n`]*?\b(?:install|add)\b[^\n`]*?(?<![\w./[-])ragen(?![\w./-])")
"""A command that installs the index's `ragen`, with or without extras or a version."""


def test_no_text_tells_people_to_install_the_other_project():
    folders = ("ragen", "docs", "config", "benchmarks", ".ci", "tests")
    files = [*ROOT.glob("*.*"), *(path for folder in folders for path in (ROOT / folder).rglob("*"))]
    texts = [path for path in files if path.suffix in {"", ".py", ".md", ".txt", ".toml", ".yaml", ".sh"}]
    told = {
        f"{path.relative_to(ROOT)}: {found.group()}"
        for path in texts
        if path.is_file() and path != Path(__file__).resolve() and "__pycache__" not in path.parts
        for found in OTHER_PROJECT.finditer(path.read_text("utf-8", errors="replace"))
    }
    assert told == set()
    assert (ROOT / "README.md") in texts and (ROOT / ".ci" / "run") in texts
