"""What a model is told, as chat and as text, and how its replies are read."""
