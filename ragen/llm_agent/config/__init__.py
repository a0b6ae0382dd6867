"""What a run is told: files composed, keys checked once and given types, and commands that take them."""
