"""Kinds of game beside RAGEN's own: gymnasium's, and what their observations, generators and shared memory need."""
