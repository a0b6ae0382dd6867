"""The 2x2 cube: turn faces until each shows one color."""
