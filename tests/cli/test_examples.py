"""Examples in the help, and what shells complete."""

from __future__ import annotations

import os
import pty
import re
import select
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import click
import pytest
from click.shell_completion import ShellComplete

from nest.cli.completing import SHELLS, _Completed
from nest.cli.help_texts import EXAMPLES
from nest.cli.main import cli as nest_cli
from nest.cli.main import commands, main
from nest.hardware import find_cluster
from nest.models.zoo import architecture
from nest.solvers.registry import solver_names
from tests.rows import rows

COMMANDS = dict(commands())
ALL = [(path, text) for path, pair in EXAMPLES.items() for text in pair]


def words_of(text: str) -> list[str]:
    """Return the words of an example, without what the shell does."""
    words = shlex.split(text.replace("\\\n", " "))
    return words[: words.index(">")] if ">" in words else words


def test_every_command_has_two_examples():
    assert set(EXAMPLES) == set(COMMANDS)
    for path, (first, second) in EXAMPLES.items():
        assert first != second
        for text in (first, second):
            assert text.startswith(path if path != "nest" else "nest ")
            assert max(map(len, text.splitlines())) <= 75


@pytest.mark.parametrize("path", COMMANDS)
def test_the_help_shows_them_as_they_are(path, cli):
    cli.succeeds(*path.split()[1:], "--help")
    page = cli.out
    assert max(map(len, page.splitlines())) < 80
    for text in EXAMPLES[path]:
        indented = text.replace("\n", "\n    ")
        assert f"    {indented}\n" in page


@pytest.mark.parametrize(("path", "text"), ALL)
def test_examples_are_commands(path, text, tmp_path, monkeypatch):
    """Options are read; models, clusters and solvers exist."""
    monkeypatch.chdir(tmp_path)
    words = words_of(text)
    command: click.Command = nest_cli
    rest = words[1:]
    while isinstance(command, click.Group) and rest:
        inner = command.get_command(click.Context(command), rest[0])
        if inner is None:
            break
        command, rest = inner, rest[1:]
    values = command.make_context(" ".join(words[:2]), rest).params
    if values.get("model"):
        names = values["model"]
        for name in [names] if isinstance(names, str) else names:
            architecture(name)
    if not (values.get("cluster") or ".yaml").endswith(".yaml"):
        find_cluster(values["cluster"])
    solvers = values.get("solvers")
    for name in (solvers if isinstance(solvers, str) else "dp").split(","):
        assert name in solver_names()
    assert (values.get("solver") or "dp") in solver_names()


#: Those that take no time, in an order in which files are there.
RUN = [
    "nest solve llama2-7b-8 --solver dp -o plan.json",
    "nest score llama2-7b-8 plan.json --json score.json",
    "nest check llama2-7b-8 plan.json",
    "nest check llama2-7b-8",
    "nest simulate llama2-7b-8 plan.json",
    "nest trace llama2-7b-8 plan.json -o trace.json",
    "nest problems --model llama3-70b --cluster h100x64 -o problem.json",
    "nest problems",
    "nest new cluster --machine h100 --devices 32 -o my.yaml",
    "nest instances --class tight,moe",
    "nest instances show gpt2-v100-16gbx4",
    "nest instances fetch gpt2-v100-16gbx4 --plans -o instance",
    "nest calibrate --template -o runs.csv",
    "nest audit",
    "nest cite alpa piper --bibtex",
    "nest completion fish > ~/.config/fish/completions/nest.fish",
    "nest topology bench dgx:nodes=2",
    "nest solvers",
    "nest versions",
]


def test_some_of_them_run(cli, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    known = {text for _, text in ALL}
    for text in RUN:
        assert text in known
        assert cli(*words_of(text)[1:]) == 0, text
        assert cli.out or "-o" in text
    assert {path.name for path in tmp_path.iterdir()} == {
        *("plan.json", "score.json", "trace.json", "problem.json"),
        *("instance", "runs.csv", "my.yaml"),
    }


def completed(*words: str) -> dict[str, str]:
    """Return what could go on, with its kind."""
    shell = ShellComplete(nest_cli, {}, "nest", "_NEST_COMPLETE")
    found = shell.get_completions(list(words[:-1]), words[-1])
    return {item.value: item.type for item in found}


def test_names_are_completed():
    assert completed("sol") == {"solve": "plain", "solvers": "plain"}
    assert completed("solve", "--solver", "ga") == {"ga": "file", "galvatron": "plain"}
    assert completed("compare", "--solvers", "dp,mil") == {"dp,milp": "plain"}
    assert "dp,dp" not in completed("compare", "--solvers", "dp,")
    assert completed("check", "gpt3-175b-2") == {
        "gpt3-175b-2": "file",
        "gpt3-175b-256": "plain",
    }
    assert "h100x64" in completed("solve", "--cluster", "h100")
    assert "llama3-70b" in completed("solve", "--model", "llama3-7")
    assert "megatron" in completed("solve", "--target", "")
    assert "zb-h1" in completed("solve", "--schedule", "zb")
    assert set(completed("solve", "--recompute", "none,f")) == {"none,full"}
    assert set(completed("completion", "")) == set(SHELLS)
    assert set(completed("audit", "blind")) == {"blindness"}
    assert set(completed("instances", "show", "gpt2-v")) == {"gpt2-v100-16gbx4"}


@pytest.mark.parametrize(("words", "found"), rows("commands", "completed"))
def test_whatever_is_one_of_a_few_is_completed(words, found):
    offered = set(completed(*words))
    assert {*found} <= offered
    assert all(text.startswith(words[-1]) for text in offered)


#: What values are called that are none of a few.
FREE = re.compile(
    r"[A-Z]|USD|PERCENT|TEXT|SIZE|NAME|NAME=VALUE|KEY=VALUE|TYPE=\w+|NAME/FLAVOR"
    r"|USD\|TYPE=USD"
    r"|NAME=F|ADDRESS\|N|A,B|DATE|tensor=N,vector=N|FILE.py:FACTORY"
)


def test_what_is_not_completed_is_free():
    for path, command in commands():
        for parameter in command.params:
            if parameter.metavar and not isinstance(parameter.type, _Completed):
                what = parameter.metavar.strip("[]…,")
                assert FREE.fullmatch(what), (path, parameter.opts)


def test_files_and_folders_are_completed():
    assert completed("score", "llama2-7b-8", "pl") == {"pl": "file"}
    assert completed("score", "p").pop("p") == "file"
    assert completed("bench", "--output", "r") == {"r": "dir"}
    assert completed("solve", "--json", "o") == {"o": "file"}


@pytest.mark.parametrize("shell", SHELLS)
def test_what_shells_read(shell, cli):
    cli.succeeds(f"completion {shell}")
    assert "_NEST_COMPLETE" in cli.out
    assert "nest" in cli.out


@pytest.fixture
def shell(cli, tmp_path):
    """A folder where a shell finds nest; what is needed to be in it."""
    for name in SHELLS:
        cli.succeeds(f"completion {name}")
        (tmp_path / f"complete.{name}").write_text(cli.out)
    nest = Path("nest")
    nest.write_text(f'#!/bin/sh\nexec {sys.executable} -m nest "$@"\n')
    nest.chmod(0o755)
    own = {
        "PATH": f"{tmp_path}:{os.environ['PATH']}",
        "PYTHONPATH": str(Path(__file__).parents[2]),
        "HOME": str(tmp_path),
    }
    return {"cwd": tmp_path, "env": os.environ | own}


def needs(name):
    return pytest.mark.skipif(shutil.which(name) is None, reason=f"no {name} here")


def lines_of(words, shell):
    done = subprocess.run(words, **shell, capture_output=True, text=True)
    assert done.stderr == ""
    return done.stdout.splitlines()


@needs("bash")
def test_bash_completes(shell):
    """A shell that reads the script asks the program for words."""
    script = (
        "source complete.bash\n"
        "COMP_WORDS=(nest conform --opt); COMP_CWORD=2; COMPREPLY=()\n"
        "_nest_completion nest\n"
        'echo "${COMPREPLY[@]}"\n'
    )
    assert lines_of(["bash", "-c", script], shell) == ["--option"]


@needs("fish")
def test_fish_completes(shell):
    """Also the last name of a list, and what has commas in its help."""
    script = (
        "source complete.fish\n"
        'complete -C "nest conform --opt"\n'
        'complete -C "nest compare --solvers dp,mil"\n'
        'complete -C "nest score llama2-7b-8 complete.z"\n'
    )
    option, *others = lines_of(["fish", "-c", script], shell)
    assert option.startswith("--option\tOption of one solver, see 'nest ")
    assert others == ["dp,milp", "complete.zsh"]


@needs("zsh")
def test_zsh_completes(shell):
    """In a terminal, as only there it does: the answer follows the tab."""
    controller, terminal = pty.openpty()
    process = subprocess.Popen(
        ["zsh", "-f", "-i"],
        cwd=shell["cwd"],
        env=shell["env"] | {"TERM": "dumb", "PS1": "> "},
        stdin=terminal,
        stdout=terminal,
        stderr=terminal,
        start_new_session=True,
    )
    os.close(terminal)

    def say(text, answer):
        os.write(controller, text.encode())
        said = ""
        while answer not in said:
            ready, _, _ = select.select([controller], [], [], 60)
            assert ready, said
            said += os.read(controller, 4096).decode(errors="replace")

    try:
        say(
            "autoload -Uz compinit; compinit -u; source complete.zsh; "
            "print -r 'rea''dy'\n",
            "ready",
        )
        say("nest conform --opt\t", "--option ")
        say("\x15nest compare --solvers dp,mil\t", "dp,milp ")
        say("\x15nest score llama2-7b-8 complete.z\t", "complete.zsh ")
    finally:
        process.kill()
        process.wait()
        os.close(controller)


def test_main_answers_a_shell(monkeypatch, capsys):
    monkeypatch.setenv("_NEST_COMPLETE", "bash_complete")
    monkeypatch.setenv("COMP_WORDS", "nest versi")
    monkeypatch.setenv("COMP_CWORD", "1")
    with pytest.raises(SystemExit) as caught:
        main([])
    assert caught.value.code == 0
    assert capsys.readouterr().out == "plain,versions\n"
