"""Workers that are processes of our own, which a supervisor process starts and reaps (Linux)."""
