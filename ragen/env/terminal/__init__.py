"""A shell in a sandbox, and tasks to be done with it."""
