"""CAGE Challenge 2's second scenario as tables: the same network, agents, rewards and observations, in microseconds.

Reading order: ``tables`` (what runs where, which exploit needs what, what is learned where), ``network`` (the state),
``red`` (what Red's actions do), ``agents`` (which it takes), ``blue`` (Blue's actions, and the table that Blue sees),
``game`` (one step of all of it). Written from what the original does, which it is compared with by
``python -m ragen.cage2 compare``; episodes have the same distribution, not the same numbers.

With ``bugs="faithful"`` the original's quirks are kept; with ``"fixed"`` these four are not:

- after a Restore of Op_Server0, an Impact stops nothing any more (the backup has lost the service's process);
- Remove never ends sessions that came by SSH (nothing that is noticed of them names their process);
- a Vsftpd decoy asks for port 21 to be free and opens port 80, so that it may come to stand behind a real web server;
- the database of User3 listens on port 3389, where nothing asks for one.
"""
