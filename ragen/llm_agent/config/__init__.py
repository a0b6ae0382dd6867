"""The configuration of a run: files composed, keys checked once and given types, and commands that take them."""
