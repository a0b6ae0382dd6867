"""A guessing game, as a package that brings an environment type of its own."""
