"""WebShop (Yao et al. 2022): a text-based web shop, with an instruction that describes what to buy.

The modules, from files to pages: ``source`` finds the data files, ``records`` reads them, ``goals`` draws prices and
instructions, ``analyzer`` and ``search`` index the texts, ``build`` writes everything to a SQLite file in
the machine's cache, which ``catalogue`` reads, ``pages`` renders it, ``reward`` scores a purchase, and ``env`` is the
environment.
"""
