"""See :mod:`ragen.config`."""
