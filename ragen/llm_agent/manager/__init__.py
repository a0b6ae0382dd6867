"""Parts of the environment manager: inputs, handles to environments, branches, and metrics."""
