"""The configuration of a run: composition of files, typed and checked keys, and command lines."""
