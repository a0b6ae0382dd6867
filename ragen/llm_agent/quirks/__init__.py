"""Batches as RAGEN itself builds them, right or wrong: ``quirks: true``, for comparing with RAGEN.

Without quirks the context manager does what is meant. With them, ``generation`` says whose oddities come back:

====================================================================================================  ======
what RAGEN does                                                                                       which
====================================================================================================  ======
a window shortens the caller's history for good: turns count from 1 again, rewards before it are lost  2025
a training row drops the last turn of a history, also one that has a reply                             2025
what is told of a turn without valid actions is told in prompts, and not in the rows that are learnt   2026
a chat that is too long may lose a question and keep its answer: then questions are learnt             2026
rows of single turns are learnt from the token before the reply's header on                            2026
the loss mask speaks of the token before the one that ``responses`` has in its column                  both
turn tokens in a reply begin turns of their own, and questions and answers change places               both
symbols and actions are those of the environment type's defaults, whatever ``env_config`` says         both
``original_rm_scores`` are ``rm_scores``; the score stands in the last column                          both
turn scores stand on the line break behind a reply, without penalty; those of turns not shown are lost  both
columns of objects have as many dimensions as their lists agree in                                     both
====================================================================================================  ======

What has no batch at all, such as a history without turns, is an error that says so, and not an ``IndexError``.
"""
