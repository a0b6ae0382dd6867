"""The command ``ragen``, with a subcommand for everything that the package does in a terminal.

``ragen COMMAND --help`` has an example of each. A command's module is imported when the command is used, and its
dependencies when it runs, so that help, errors and completions are immediate. ``python -m ragen`` is equivalent.
"""
