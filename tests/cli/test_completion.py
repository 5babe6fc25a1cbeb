"""Completion of commands and options in shells."""

import os
import shutil
import subprocess
import sys

import pytest

from tests.commands import COMMAND

# As the installed program is named.
NAMED = f"import sys; sys.argv[0] = 'stablelog'\n{COMMAND}"


def completed(*words, **variables):
    environment = {name: text for name, text in os.environ.items() if not name.startswith("_")}
    done = subprocess.run(
        [sys.executable, "-c", NAMED, *words],
        env={**environment, **variables},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert (done.returncode, done.stderr) == (0, "")
    return done.stdout


SCRIPTS = {
    "bash": "complete -o default -F _stablelog_completion stablelog",
    "zsh": "compdef _stablelog_completion stablelog",
    "fish": "complete --command stablelog",
}


@pytest.mark.parametrize("shell", SCRIPTS)
def test_the_script_of_each_shell_is_printed(shell):
    script = completed(_STABLELOG_COMPLETE=f"source_{shell}")
    assert SCRIPTS[shell] in script
    # The option finds the shell among the parents of the process. Without that, it takes the shell as its value.
    undetected = {"_TYPER_COMPLETE_TEST_DISABLE_SHELL_DETECTION": "1"}
    assert completed("--show-completion", shell, **undetected).strip() == script.strip()


def test_the_option_prints_the_script_of_the_shell_in_which_it_runs():
    bash = shutil.which("bash")
    done = subprocess.run(
        [bash, "-c", '"$@"; true', "bash", sys.executable, "-c", NAMED, "--show-completion"],
        capture_output=True,
        text=True,
        timeout=120,
        check=True,
    )
    assert SCRIPTS["bash"] in done.stdout


@pytest.mark.extended
@pytest.mark.parametrize(
    ("line", "found"),
    [
        ("stablelog top", ["topics"]),
        ("stablelog topics tr", ["trim"]),
        ("stablelog topics trim --be", ["--before"]),
    ],
)
def test_commands_and_options_are_completed(line, found):
    words = {"COMP_WORDS": line, "COMP_CWORD": str(len(line.split()) - 1)}
    assert completed(_STABLELOG_COMPLETE="complete_bash", **words).split() == found
    zsh = completed(_STABLELOG_COMPLETE="complete_zsh", _TYPER_COMPLETE_ARGS=line)
    fish = {"_TYPER_COMPLETE_ARGS": line, "_TYPER_COMPLETE_FISH_ACTION": "get-args"}
    assert f'"{found[0]}"' in zsh
    assert completed(_STABLELOG_COMPLETE="complete_fish", **fish).startswith(found[0])
