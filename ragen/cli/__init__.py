"""The command ``ragen``: one name for what the package does in a terminal.

``ragen COMMAND --help`` has an example of each. A command's module is imported when it is asked for, and what that
needs when it is run, so that help, refusals and completions come at once. ``python -m ragen`` is the same.
"""
