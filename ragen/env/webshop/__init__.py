"""WebShop (Yao et al. 2022): a text-based web shop, with an instruction that describes what to buy.

The modules, from files to pages: ``config`` finds the data files, ``records`` reads them, ``goals`` draws prices and
instructions, ``search`` indexes the texts, ``catalogue`` writes everything to a SQLite file in the
machine's cache and reads it, ``pages`` renders it, ``reward`` scores a purchase, and ``env`` is the environment.
"""
