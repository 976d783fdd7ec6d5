"""`bringup completion`: a shell's completion script, generated from the parser; and its requests."""

from __future__ import annotations

import os

import click
from click.shell_completion import (
    BashComplete,
    CompletionItem,
    add_completion_class,
    get_completion_class,
    split_arg_string,
)

from bringup.cli.parameters.words import OneOf

VARIABLE = "_BRINGUP_COMPLETE"  # the name that click expects
_BASH = """\
%(complete_func)s() {
    local IFS=$'\\n' item cur=${COMP_WORDS[COMP_CWORD]}
    COMPREPLY=()
    export COMP_LINE COMP_POINT
    for item in $(%(complete_var)s=bash_complete "$1" 2>/dev/null); do
        case $item in
            file,*) compopt -o filenames; COMPREPLY+=($(compgen -f -- "$cur")) ;;
            dir,*) compopt -o filenames; COMPREPLY+=($(compgen -d -- "$cur")) ;;
            *) COMPREPLY+=("${item#*,}") ;;
        esac
    done
    if [[ ${#COMPREPLY[@]} == 1 && ${COMPREPLY[0]} == *[:/] ]]; then compopt -o nospace; fi
}
complete -o nosort -F %(complete_func)s %(prog_name)s
"""


@add_completion_class
class Bash(BashComplete):
    """Click's, with three differences: words are not split at a colon; files and words are offered together; no space
    after an incomplete word (`hf://`)."""

    source_template = _BASH

    @staticmethod
    def _check_version() -> None:
        """No check: the script may be printed without bash; 4.4, of 2016, is enough."""

    def get_completion_args(self) -> tuple[list[str], str]:
        line = os.environ["COMP_LINE"].encode()[: int(os.environ["COMP_POINT"])].decode()
        words = split_arg_string(line)
        incomplete = "" if line[-1:].isspace() else words.pop()
        return words[1:], incomplete

    def format_completion(self, item: CompletionItem) -> str:
        """Bash splits words at a colon, and replaces only the part after it."""
        _, incomplete = self.get_completion_args()
        return f"{item.type},{item.value[incomplete.rfind(':') + 1 :]}"


@click.command("completion")
@click.argument("shell", type=OneOf(["bash", "zsh", "fish"]))
def command(shell: str) -> None:
    """Print the completion script of SHELL: bash, zsh or fish.

    \b
    bash: echo 'eval "$(bringup completion bash)"' >> ~/.bashrc
    zsh:  echo 'eval "$(bringup completion zsh)"' >> ~/.zshrc
    fish: bringup completion fish > ~/.config/fish/completions/bringup.fish
    """
    found = get_completion_class(shell)
    assert found, "click knows the three"
    parser = click.get_current_context().find_root().command
    print(found(parser, {}, "bringup", VARIABLE).source())
