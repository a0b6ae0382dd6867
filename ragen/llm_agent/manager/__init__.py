"""Parts of the environment manager: inputs, handles to environments, and metrics."""
