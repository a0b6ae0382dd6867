"""One environment's episode: how it is played, recorded and rebuilt, wherever that happens."""
