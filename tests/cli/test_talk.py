"""What is said on standard error, and how much of everything."""

from __future__ import annotations

import io

import pytest
from msgspec.structs import replace

from nest.cli.main import commands, main
from nest.cli.progress import ProgressLine, StatusLine, duration, share_left
from nest.ir import write
from nest.present.verbosity import QUIET, VERBOSE
from nest.solvers.cell import Running
from tests.loopback import good_plan


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def running(elapsed_s: float, solver: str = "dp", **fields) -> Running:
    return Running(solver=solver, elapsed_s=elapsed_s, **fields)


def test_a_line_says_time_left_incumbent_and_bound():
    """Of 40 s 8 have passed: 32 are left, and 40 of the cell after it."""
    file = io.StringIO()
    known = {"best_quanta": 100, "lower_bound_quanta": 60}
    progress = ProgressLine("s", file, limit_s=40, cells=2)
    progress(running(8.0, message="closed  sets", **known))
    progress(running(9.0, "milp", **known | {"quantum_ps": 10**12}))
    ProgressLine("s", file, limit_s=40)(running(8.0, has_plan=True))
    ProgressLine("s", file)(running(8.0))
    assert file.getvalue().splitlines() == [
        "1 of 2, dp: 8 s, at most 72 s left, best 1e-07 s, bound 6e-08 s, "
        "gap 40.00 %, closed sets",
        "2 of 2, milp: 9 s, at most 31 s left, best 100 s, bound 60 s, gap 40.00 %",
        "dp: 8 s, at most 32 s left for this one, has a plan",
        "dp: 8 s, no time limit",
    ]


def test_what_runs_beyond_the_cells_is_not_counted():
    """Why nothing fits is asked of a solver, too."""
    file = io.StringIO()
    progress = ProgressLine("s", file, limit_s=40, cells=2)
    progress(running(8.0, "alpa"))
    progress.uncounted()
    progress(running(9.0, "dp"))
    assert file.getvalue().splitlines()[1] == (
        "dp: 9 s, at most 31 s left for this one"
    )


def test_a_bound_of_nothing_is_not_said():
    file = Terminal()
    ProgressLine("s", file)(running(8.0, best_quanta=10, lower_bound_quanta=0))
    assert "best" in file.getvalue()
    assert "bound" not in file.getvalue()


def test_a_bound_above_a_claim_is_no_gap_below_zero():
    file = io.StringIO()
    ProgressLine("s", file)(running(8.0, best_quanta=10, lower_bound_quanta=20))
    assert file.getvalue().endswith("gap 0 %\n")


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(0.4, "0 s"), (99.4, "99 s"), (121, "2 min"), (7380, "2 h 3 min")],
)
def test_durations(seconds, text):
    assert duration(seconds) == text


def test_the_rest_takes_as_long_as_the_part():
    assert share_left(10.0, 4, 12) == ", about 20 s left"
    assert share_left(10.0, 0, 12) == share_left(10.0, 12, 12) == ""


def test_a_line_on_a_terminal_is_one_line(monkeypatch):
    monkeypatch.setenv("COLUMNS", "20")
    monkeypatch.setenv("TERM", "xterm")
    file = Terminal()
    with StatusLine(file) as line:
        line.show(1.0, "x" * 50)
    assert file.getvalue() == "\r\x1b[2K" + "x" * 19 + "\r\x1b[2K"


def test_quiet_lines_and_verbose_ones():
    for switch, expected in ((QUIET, ""), (VERBOSE, "one\ntwo\n")):
        token = switch.set(True)
        try:
            file = Terminal()
            with StatusLine(file) as line:
                for elapsed_s, text in ((1, "one"), (1.5, "no"), (2, "two")):
                    line.show(elapsed_s, text)
            assert file.getvalue() == expected
        finally:
            switch.reset(token)


def test_every_command_is_quiet_or_verbose_if_asked():
    for _, command in commands():
        flags = [flag for p in command.params for flag in p.opts]
        assert {"-q", "--quiet", "-v", "--verbose"} <= set(flags)
        assert len(flags) == len(set(flags))


def test_quiet_leaves_warnings_out(cli, files):
    write("foreign.json", replace(good_plan(), problem_hash="0" * 64))
    arguments = "score problem.json foreign.json"
    cli.succeeds(arguments)
    assert "nest: warning: the plan was made for problem" in cli.err
    table = cli.out
    cli.succeeds(f"{arguments} --quiet")
    assert (cli.out, cli.err) == (table, "")
    assert not QUIET.get()
    cli.succeeds(arguments)
    assert cli.err


def test_quiet_says_nothing_beside_documents(cli, files):
    arguments = "simulate problem.json --plan pp=2"
    cli.succeeds(arguments)
    assert "nest: --plan is the fastest with pp=2" in cli.err
    cli.succeeds(f"{arguments} -q")
    assert cli.out
    assert cli.err == ""
    cli.succeeds("solve problem.json --json - -q")
    assert cli.out.startswith("{")
    assert cli.err == ""


def test_an_import_that_is_quiet_prints_no_notes(tmp_path, capsys) -> None:
    path = tmp_path / "run.sh"
    path.write_text(
        "NPROC_PER_NODE=8 megatron sft --model qwen3-8b --max_length 4096\n"
    )
    output = str(tmp_path / "problem.json")
    words = ["import", "megatron-args", str(path), "--cluster", "h100x8", "-o", output]
    for more, has_notes in (["-q"], False), ([], True):
        with pytest.raises(SystemExit) as ended:
            main([*words, *more])
        assert ended.value.code == 0
        assert bool(capsys.readouterr().err) == has_notes
