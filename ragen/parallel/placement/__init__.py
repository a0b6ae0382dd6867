"""Who goes where: which environments are played in the main process and which in lanes; plans, never deeds."""
