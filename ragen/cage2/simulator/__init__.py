"""CAGE Challenge 2's second scenario as tables: the same network, agents, rewards and observations, in microseconds.

``tables`` has services, exploits, and what Red learns on each host; ``game`` has the rest. It reimplements the
original's behavior; episodes have the same distribution, not the same numbers. The original's bugs are kept:

- after a Restore of Op_Server0, an Impact no longer stops the service (the backup lacks the service's process);
- Remove never ends sessions opened by SSH (their events do not contain the process id);
- a Vsftpd decoy requires port 21 to be free but opens port 80, possibly behind a real web server;
- the database of User3 listens on port 3389, where no exploit looks for one.
"""
