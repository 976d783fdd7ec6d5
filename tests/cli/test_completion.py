"""What a shell offers, asked of real shells with the printed script."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from bringup.cli.main import COMMANDS
from tests.cli.conftest import Bringup

BIN = Path(sys.executable).parent
# Calls the completion function as bash does on TAB: words cut at COMP_WORDBREAKS. Of each line what it replies, and
# an empty line.
BASH = """
eval "$(bringup completion bash)"
compopt() { :; }
for COMP_LINE; do
    COMP_POINT=${#COMP_LINE}
    read -r -d '' -a COMP_WORDS < <(printf '%s' "$COMP_LINE" | sed 's/[:=]/ & /g'; printf '\\0')
    [[ $COMP_LINE == *[[:space:]:=] ]] && COMP_WORDS+=("")
    COMP_CWORD=$((${#COMP_WORDS[@]} - 1))
    _bringup_completion bringup
    printf '%s\\n' "${COMPREPLY[@]}" ""
done
"""
OFFERED = {
    "bringup ch": ["check"],
    "bringup com": ["compile", "completion"],
    "bringup check --form": ["--format"],
    "bringup check --format ": ["full", "concise", "json", "github"],
    "bringup check --format js": ["json"],
    "bringup check --format=js": ["json"],
    "bringup compile gpt2 --dtype f": ["float32", "float16"],
    "bringup compile gpt2 --target i": ["iree-cpu"],
    "bringup check gpt2-": ["gpt2-medium", "gpt2-large", "gpt2-xl"],
    "bringup -v check gpt2-m": ["gpt2-medium"],
    "bringup explain BU10": ["BU101", "BU102", "BU103"],
    "bringup explain shape-": ["shape-mismatch"],
    "bringup check --checkpoint h": ["hf://"],
    "bringup check --checkpoint py": ["pypi:"],
    "bringup check my": ["my_model.py"],
    "bringup check --adapter my": ["my_model.py"],
    "bringup check --checkpoint wei": ["weights"],
    "bringup run ": ["tiny.bundle"],
    "bringup run wei": ["weights"],
    "bringup completion ": ["bash", "zsh", "fish"],
    "bringup ": list(COMMANDS),
}


def shell(name: str, script: str, *words: str, cwd: Path | None = None) -> list[str]:
    if shutil.which(name) is None:
        pytest.skip(f"{name} is not installed")
    env = os.environ | {"PATH": f"{BIN}:{os.environ['PATH']}"}
    command = [name, *(["--norc"] if name == "bash" else []), "-c", script, *words]
    done = subprocess.run(command, capture_output=True, text=True, check=True, cwd=cwd, env=env)
    assert done.stderr == ""
    return done.stdout.splitlines()


@pytest.fixture(scope="module")
def offered(tmp_path_factory: pytest.TempPathFactory) -> dict[str, list[str]]:
    """What bash offers where there are a model file, a folder and a bundle."""
    here = tmp_path_factory.mktemp("here")
    (here / "my_model.py").write_text("")
    (here / "weights").mkdir()
    (here / "tiny.bundle").mkdir()
    (here / "tiny.bundle/manifest.json").write_text("{}")
    replies = "\n".join(shell("bash", BASH, "bash", *OFFERED, cwd=here)).split("\n\n")
    return {line: reply.split("\n") for line, reply in zip(OFFERED, replies, strict=True)}


@pytest.mark.parametrize("line", OFFERED)
def test_bash(offered: dict[str, list[str]], line: str) -> None:
    assert offered[line][: len(OFFERED[line])] == OFFERED[line]


def test_bash_bears_with_what_is_wrong() -> None:
    """Whatever is offered then: no traceback reaches the terminal."""
    shell("bash", BASH, "bash", "bringup zebra ", "bringup check --nonsense x ", "bringup check 'gp", "bringup \\")


def test_bash_registers_the_function() -> None:
    (line,) = shell("bash", 'eval "$(bringup completion bash)"; complete -p bringup')
    assert line == "complete -o nosort -F _bringup_completion bringup"


def test_bash_cuts_words_at_colons() -> None:
    """Of `cuda:sm_9` it replaces `sm_9` only, and it hands over three words."""
    from bringup.cli.completion import Bash
    from bringup.cli.main import cli

    line = "bringup run --executor cuda:sm_9"
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("COMP_LINE", line)
        patch.setenv("COMP_POINT", str(len(line)))
        bash = Bash(cli, {}, "bringup", "_BRINGUP_COMPLETE")
        assert bash.get_completion_args() == (["run", "--executor"], "cuda:sm_9")
        from click.shell_completion import CompletionItem

        assert bash.format_completion(CompletionItem("cuda:sm_90")) == "plain,sm_90"


def test_zsh() -> None:
    script = """
    autoload -Uz compinit; compinit -u; eval "$(bringup completion zsh)"
    words=(bringup check --format js); CURRENT=4
    _describe() { print -l -- "${(@P)3}" }; compadd() { print -l -- "${@[-1]}" "${(@P)${@[-1]}}" 2>/dev/null }
    _bringup_completion
    """
    assert any("json" in line for line in shell("zsh", script))


def test_fish() -> None:
    found = shell("fish", 'bringup completion fish | source; complete --do-complete "bringup check --format js"')
    assert [line.split("\t")[0] for line in found] == ["json"]


@pytest.mark.parametrize("name", ["bash", "zsh", "fish"])
def test_every_script_asks_bringup(bringup: Bringup, name: str) -> None:
    result = bringup("completion", name)
    assert result.exit_code == 0
    assert f"_BRINGUP_COMPLETE={name}_complete" in result.stdout
    assert result.stderr == ""


def test_an_answer_imports_nothing_heavy() -> None:
    script = "import sys; from bringup.cli.main import main\ntry: main()\nfinally: print(*sys.modules)"
    line = "bringup check gp"
    env = os.environ | {"_BRINGUP_COMPLETE": "bash_complete", "COMP_LINE": line, "COMP_POINT": str(len(line))}
    output = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True, env=env).stdout
    assert "plain,gpt2\n" in output
    assert not {"torch", "numpy", "rich", "iree", "transformers"} & set(output.splitlines()[-1].split())
