"""The command ``ragen completion SHELL``: a script with which the shell completes commands, options, names and keys.

At every tab, the script runs ``ragen completion words -- WORD ...`` with the words typed so far after ``ragen``, of
which the last one is to be completed. Completions are therefore always current: configurations of the folder on the
line, keys of the configuration, and registered environment types.
"""

from __future__ import annotations

import argparse
import contextlib
import io
from collections.abc import Iterable, Sequence
from itertools import pairwise
from pathlib import Path

from ragen.cli.commands import COMMANDS
from ragen.commands import CommandParser

PROG = "ragen completion"
TYPED = ("check", "play")
"""Commands whose first argument is an environment type."""

SCRIPTS = {
    "bash": """\
_ragen() {
    local word=${COMP_WORDS[COMP_CWORD]} line=${COMP_LINE:0:COMP_POINT}
    local -a words; read -ra words <<< "$line"
    [[ $line == *[[:space:]] ]] && words+=("")
    local IFS=$'\\n'
    COMPREPLY=($("${words[0]}" completion words -- "${words[@]:1}" 2>/dev/null))
    [[ ${#COMPREPLY[@]} -eq 1 && ${COMPREPLY[0]} == *= ]] && compopt -o nospace
    local shown=${words[-1]}
    if [[ $shown == *=* && $COMP_WORDBREAKS == *=* ]]; then COMPREPLY=("${COMPREPLY[@]#"${shown%"$word"}"}"); fi
}
complete -o default -F _ragen ragen
""",
    "zsh": """\
#compdef ragen
_ragen() {
    local -a found
    found=("${(@f)$("${words[1]}" completion words -- "${(@)words[2,CURRENT]}" 2>/dev/null)}")
    if [[ -z $found[1] ]]; then _files; return; fi
    compadd -- ${found:#*=}
    compadd -S '' -- ${(M)found:#*=}
}
compdef _ragen ragen
""",
    "fish": """\
function __ragen_words
    set -l words (commandline -opc) (commandline -ct)
    $words[1] completion words -- $words[2..-1] 2>/dev/null
end
complete -c ragen -a '(__ragen_words)'
""",
}
"""The script for each supported shell."""

WHERE = (
    'eval "$(ragen completion bash)"  # in ~/.bashrc',
    'eval "$(ragen completion zsh)"  # in ~/.zshrc, after compinit',
    "ragen completion fish > ~/.config/fish/completions/ragen.fish",
)


def parser(prog: str = PROG) -> argparse.ArgumentParser:
    """The command line, under this name."""
    top = CommandParser(
        prog=prog,
        description="Print a script for shell completion of commands, options, names and keys.",
        examples=WHERE,
    )
    top.add_argument("shell", choices=(*SCRIPTS, "words"), help="the shell; words is used by the scripts")
    top.add_argument("words", nargs="*", default=[], metavar="WORD", help=argparse.SUPPRESS)
    return top


def main(argv: Sequence[str] | None = None, prog: str = PROG) -> int:
    """Run the command line; 0.

    Args:
        argv: Its arguments; None takes the process's own.
        prog: The program's name.
    """
    options = parser(prog).parse_args(argv)
    if options.shell == "words":
        print("\n".join(words_for(options.words)))
    else:
        print(SCRIPTS[options.shell], end="")
    return 0


def words_for(typed: Sequence[str]) -> list[str]:
    """The completions of the last word.

    Args:
        typed: The words after ``ragen``; the last one is to be completed, and may be empty.

    Returns:
        Sorted completions. Empty for a file name, which the shell completes itself.
    """
    *before, word = typed or [""]
    if not before:
        return _beginning(word, (*COMMANDS, "--help", "--version"))
    if before[0] not in COMMANDS:
        return []
    parser = COMMANDS[before[0]].parser()
    option = _option(parser, before[-1])
    if option is not None and option.nargs != 0:
        return _beginning(word, _values(option, before))
    if word.startswith("-"):
        return _beginning(word, (name for each in parser._actions for name in each.option_strings if "--" in name))
    return _beginning(word, _arguments(parser, before))


def _beginning(word: str, choices: Iterable[str]) -> list[str]:
    return sorted({choice for choice in choices if choice.startswith(word)})


def _option(parser: argparse.ArgumentParser, word: str) -> argparse.Action | None:
    return next((action for action in parser._actions if word in action.option_strings), None)


def _values(option: argparse.Action, words: Sequence[str]) -> list[str]:
    """The possible values of an option; empty for numbers and files."""
    if option.choices is not None:
        return [str(choice) for choice in option.choices]
    if option.dest != "config_name":
        return []
    from ragen.llm_agent.config.loading import config_names

    given = (_given(words, flags) for flags in (("-cp", "--config-path"), ("-cd", "--config-dir")))
    return [name for folder in (*given, None) for name in config_names(None if folder is None else Path(folder))]


def _given(words: Sequence[str], flags: Sequence[str]) -> str | None:
    """The value of an option on the line."""
    return next((value for flag, value in pairwise(words) if flag in flags), None)


def _arguments(parser: argparse.ArgumentParser, words: Sequence[str]) -> list[str]:
    """The possible positional arguments."""
    command = words[0]
    if command in TYPED:
        from ragen.env.registry import known_names

        names = known_names()
        types = [word for word in words[1:] if word in names]
        return [f"{key}=" for key in _fields(types[0])] if types else names
    positional = next((each for each in parser._actions if not each.option_strings and each.choices), None)
    if positional is not None:
        return [str(choice) for choice in positional.choices or ()]
    return _keys(parser, words) if any(each.dest == "overrides" for each in parser._actions) else []


def _fields(env_type: str) -> list[str]:
    from dataclasses import fields, is_dataclass

    from ragen.env.registry import resolve_env

    config_class = resolve_env(env_type)[1]
    return [field.name for field in fields(config_class)] if is_dataclass(config_class) else []


def _keys(parser: argparse.ArgumentParser, words: Sequence[str]) -> list[str]:
    """The keys of the configuration that the line names, each ready for its value."""
    from ragen.errors import ConfigError
    from ragen.llm_agent.config.loading import config_keys, load_config

    with contextlib.suppress(ConfigError, SystemExit), contextlib.redirect_stderr(io.StringIO()):
        named = parser.parse_intermixed_args([word for word in words[1:] if "=" not in word])
        config = load_config(named.config_name, (), named.config_path, named.config_dir)
        return [f"{key}=" for key in config_keys(config)]
    return []
