"""Environments on OpenEnv servers, played here as if they were local."""
