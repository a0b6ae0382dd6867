"""The folder of the package's configurations."""

from ragen.files import config_directory

__all__ = ["config_directory"]
