"""Tools around the engine: is an environment fit (``check``), what failed and how to play it again (``replay``)."""
