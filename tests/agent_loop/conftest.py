"""Tests here never ask the Hugging Face hub."""

import os

os.environ.setdefault("HF_HUB_OFFLINE", "1")
