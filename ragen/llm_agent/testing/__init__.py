"""For tests and demonstrations: recordings of rollouts to compare, and a player that needs no model."""
