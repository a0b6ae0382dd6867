"""The version, in a module of its own: workers on other machines compare it."""

__version__ = "0.2.0"
