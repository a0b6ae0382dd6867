"""Tools for the engine: checking environments (``check``), and replaying failures (``replay``)."""
