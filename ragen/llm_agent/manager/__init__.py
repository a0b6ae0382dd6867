"""Parts of the environment manager: what it is given, what it hands out, what it makes of an episode."""
