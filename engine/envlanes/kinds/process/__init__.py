"""The kind of lane whose workers are our own processes, which a supervisor process starts and reaps (Linux, macOS)."""
