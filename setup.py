"""Packaging: what is installed, what it needs, and where the configuration files go.

``config/`` stays at the top of the repository, where RAGEN's users look for it, and is installed as the package
``ragen.config.files``, where :func:`ragen.files.config_directory` finds it.

``pip install -e .`` puts the clone itself on the import path. With a package elsewhere than its name says, setuptools
would install a hook instead, which Python asks last: beside a clone, ``import ragen`` would then find the clone's
folder, which ``git clone`` names ``ragen``, instead of the package in it.
"""

import re
import sys
from pathlib import Path

from setuptools import find_packages, setup

ROOT = Path(__file__).parent
IS_EDITABLE = "editable_wheel" in sys.argv

TORCH = ["torch>=2.8"]
HF = [*TORCH, "transformers>=4.56"]
VERL = [*HF, "verl>=0.6.1", "tensordict>=0.8"]  # DataProto batches
PICTURES = ["matplotlib>=3.8"]
AGENT_LOOP = ["verl>=0.9.1", "TransferQueue>=0.1.10", "cachetools>=5", "fastapi>=0.115", "uvicorn>=0.30"]
OPENENV = ["websockets>=14"]
# With it, a turn costs the server half as much processor time.
UVLOOP = ["uvloop>=0.20; sys_platform != 'win32' and implementation_name == 'cpython'"]
SERVE = ["starlette>=0.40", "uvicorn>=0.30", *OPENENV, *UVLOOP]
RAY = ["ray[default]>=2.41"]
TEST = [
    "pytest>=8",
    "pytest-timeout>=2.3",
    "pytest-xdist>=3.8",
    "hypothesis>=6.100",
    "setuptools>=77",
    "ale-py>=0.11",
    "mujoco>=3.0",
    "imageio>=2.14",
    *VERL,
    *AGENT_LOOP,
    *RAY,
    *PICTURES,
    *SERVE,
]

EXTRAS = {
    "verl": [*VERL, *AGENT_LOOP],
    "train": [*VERL, *PICTURES],
    "ray": RAY,
    "hf": HF,
    "vllm": ["vllm>=0.11"],
    "cage2": TORCH,
    "meta": [*TORCH, "gymnasium[mujoco]>=1.2.1"],
    "serve": SERVE,
    "openenv": OPENENV,
    "browser": ["playwright>=1.45", "miniwob>=1.0"],  # with the system's Chromium; playwright's own is not needed
    "alfworld": ["alfworld>=0.4.2", "textworld[pddl]>=1.7,<2"],  # fast-downward, a planner, is built from its source
    "textworld": ["textworld>=1.7,<2"],  # jericho, an interpreter in C, is built from its source
    "test": TEST,
    "dev": [*TEST, "ruff>=0.12", "mypy>=1.15", "py-spy>=0.4"],
    "docs": ["mkdocs-material>=9.5", "mkdocstrings[python]>=0.29"],
}
"""What ``pip install`` alone leaves out; :mod:`ragen.extras` says what each is for."""


def named(path: str, name: str) -> str:
    """What a module of the package gives a name to, read without importing it."""
    return re.search(rf'^{name} = "(.+)"$', (ROOT / path).read_text("utf-8"), re.M)[1]


def long_description() -> str:
    """The README, which a package index shows."""
    readme = ROOT / "README.md"
    return readme.read_text("utf-8") if readme.exists() else ""


setup(
    name=named("ragen/errors.py", "DISTRIBUTION"),
    version=named("ragen/__init__.py", "__version__"),
    description="RAGEN-compatible LLM-agent rollouts whose environments are stepped in worker processes",
    long_description=long_description(),
    long_description_content_type="text/markdown",
    license_expression="MIT",
    license_files=["LICENSE"],
    project_urls={"RAGEN": "https://github.com/mll-lab-nu/RAGEN", "verl": "https://github.com/volcengine/verl"},
    keywords=["reinforcement learning", "language models", "agents", "rollouts", "verl", "ragen"],
    classifiers=[
        "Development Status :: 4 - Beta",
        "Environment :: Console",
        "Intended Audience :: Developers",
        "Intended Audience :: Science/Research",
        "Operating System :: MacOS",
        "Operating System :: POSIX :: Linux",
        "Programming Language :: Python :: 3",
        "Programming Language :: Python :: 3 :: Only",
        "Programming Language :: Python :: 3.11",
        "Programming Language :: Python :: 3.12",
        "Topic :: Scientific/Engineering :: Artificial Intelligence",
        "Typing :: Typed",
    ],
    python_requires=">=3.11",
    packages=[*find_packages(include=["ragen", "ragen.*"]), *([] if IS_EDITABLE else ["ragen.config.files"])],
    package_dir={"": "."} if IS_EDITABLE else {"ragen.config.files": "config"},
    package_data={
        "ragen": [
            "py.typed",
            *(f"**/*.{kind}" for kind in ("json", "jsonl", "csv", "parquet", "gz", "png", "txt", "jinja", "css", "js")),
        ],
        "ragen.config.files": ["**/*.yaml"],
    },
    install_requires=[
        f"envlanes=={named('ragen/__init__.py', '__version__')}",
        "numpy>=1.26",
        "hydra-core>=1.3.2",
        "omegaconf>=2.3",
        "gymnasium>=1.2.1",
        "openai>=1.60",
        "httpx>=0.25",
        "pillow>=10.0",
        "rich>=13.7",
        "psutil>=5.9",
        "pydantic>=2.10",
        "setproctitle>=1.3.3",
        "joblib>=1.4",
        "jinja2>=3.1",
        "rapidfuzz>=3.9",
    ],
    extras_require=EXTRAS,
    entry_points={"console_scripts": ["ragen = ragen.cli.main:main"]},
)
