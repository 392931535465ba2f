"""The command line as a process: signals, pipes, terminals, encodings."""

from __future__ import annotations

import io
import json
import os
import pty
import re
import signal
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from nest.cli.progress import ProgressLine
from nest.ir import write
from nest.solvers.cell import Running
from tests.children import is_alive, python, wait_until
from tests.loopback import tiny_problem

ROOT = Path(__file__).parents[2]
NEST = (
    "from nest.solvers.registry import register_solver as register\n"
    "from nest.cli.main import main\n"
    "register('loopback', 'tests.loopback:Loopback')\n"
    "register('baseline', 'tests.loopback:LoopbackBaseline')\n"
    "main()\n"
)


@pytest.fixture
def problem(tmp_path: Path) -> str:
    path = tmp_path / "problem.json"
    write(path, tiny_problem())
    return str(path)


def command(text: str) -> list[str]:
    return [sys.executable, "-c", NEST, *text.split()]


def run(text: str, **environment: str) -> tuple[int, bytes, bytes]:
    done = subprocess.run(
        command(text), cwd=ROOT, capture_output=True, env={**os.environ, **environment}
    )
    return done.returncode, done.stdout, done.stderr


def test_python_m_nest() -> None:
    done = python("-m", "nest", "--version")
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.startswith("nest ")


def test_interrupt_of_the_start() -> None:
    """While the command line is loaded: as by someone quick."""
    code = (
        "import os, signal, sys\n"
        "signal.signal(signal.SIGINT, signal.default_int_handler)\n"
        "class Quick:\n"
        "    def find_spec(self, name, *more):\n"
        "        if name == 'nest.cli.options':\n"
        "            os.kill(os.getpid(), signal.SIGINT)\n"
        "sys.meta_path.insert(0, Quick())\n"
        "from nest.__main__ import main\n"
        "main()\n"
    )
    done = python("-c", code, "problems")
    assert (done.returncode, done.stdout) == (130, "")
    assert done.stderr == "nest: interrupted\n"


@pytest.mark.parametrize(
    ("number", "code", "text"),
    [
        (signal.SIGINT, 130, "nest: interrupted\n"),
        (signal.SIGTERM, 143, "nest: stopped by SIGTERM\n"),
    ],
)
def test_interrupt(
    problem: str, tmp_path: Path, number: signal.Signals, code: int, text: str
) -> None:
    document, pids = tmp_path / "doc.json", tmp_path / "pids"
    process = subprocess.Popen(
        command(
            f"compare {problem} --solvers baseline,loopback --json {document} "
            "--option baseline.act=heuristic --option loopback.act=hang "
            f"--option loopback.report=good --option loopback.pids={pids}"
        ),
        cwd=ROOT,
        # Wide enough that no cell of the table is wrapped, whatever it says.
        env={**os.environ, "COLUMNS": "200"},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        # What runs in the background of a shell inherits that it is ignored.
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
    )
    assert process.stderr is not None
    # By then the command has received the plan of the second cell.
    while " best 9e-08 s" not in process.stderr.readline():
        assert process.poll() is None
    # The finished cell is on disk before the second one ends.
    cells = json.loads(document.read_text())["cells"]
    assert [cell["outcome"] for cell in cells] == ["solved"]
    process.send_signal(number)
    out, err = process.communicate()
    assert process.returncode == code
    assert told(err.encode()) == [text.strip()]
    assert "baseline" in out
    assert "interrupted by the user" in out
    cells = json.loads(document.read_text())["cells"]
    assert [cell["outcome"] for cell in cells] == ["solved", "interrupted"]
    assert cells[1]["limit"] == "interrupt"
    assert cells[1]["step_time_ns"] == 90
    assert not Path(f"/proc/{pids.read_text()}").exists()


def test_broken_pipe_is_silent() -> None:
    process = subprocess.Popen(
        command("problems --json"),
        cwd=ROOT,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    assert process.stdout is not None
    assert process.stderr is not None
    process.stdout.close()
    assert process.stderr.read() == b""
    process.stderr.close()
    assert process.wait() == 128 + signal.SIGPIPE


def test_full_disk_is_one_message() -> None:
    with open("/dev/full", "wb") as full:
        done = subprocess.run(
            command("problems"),
            cwd=ROOT,
            stdout=full,
            stderr=subprocess.PIPE,
            text=True,
        )
    assert done.returncode == 2
    assert done.stderr == (
        "nest: error: output: expected a file that works, got No space left "
        "on device; check it\n"
    )


def test_closed_output_is_fine(problem: str) -> None:
    shell = ["sh", "-c", 'exec "$@" >&- 2>&- <&-', "sh"]
    arguments = command(f"solve {problem} --solver loopback")
    assert subprocess.run([*shell, *arguments], cwd=ROOT).returncode == 0


def test_tables_without_unicode(problem: str) -> None:
    code, out, err = run(
        f"solve {problem} --solver loopback --verbose",
        PYTHONIOENCODING="ascii",
        COLUMNS="120",
    )
    assert (code, told(err)) == (0, [])
    text = out.decode("ascii")
    assert "tiny: 2 x device, 2 samples per step" in text
    assert "-----" in text
    assert "?" not in text


#: A solver whose note makes a wide row.
BIG_PLAN = "--solvers loopback --option loopback.act=big-plan"


@pytest.mark.parametrize(
    "columns", ["", "0", "-40", "4e1", "wide", "²", "100001", "9" * 5000]
)
def test_piped_tables_have_80_columns(problem: str, columns: str) -> None:
    """Unless COLUMNS says how wide they may be."""
    code, out, err = run(f"compare {problem} {BIG_PLAN}", COLUMNS=columns)
    assert (code, told(err)) == (1, [])
    lines = out.decode().splitlines()
    assert max(map(len, lines)) <= 80
    *_, row = (x for x in lines if "INVALID" in x)
    assert row.startswith("loopback  ")
    assert b"\x1b" not in out


def test_piped_tables_are_as_wide_as_columns_says(problem: str) -> None:
    code, out, err = run(f"compare {problem} {BIG_PLAN}", COLUMNS="40")
    assert (code, told(err)) == (1, [])
    assert max(map(len, out.decode().splitlines())) <= 40
    assert "search, s" in out.decode()
    assert b"\x1b" not in out


def test_terminal(problem: str, tmp_path: Path) -> None:
    """The solver answers once its progress was shown."""
    answered = tmp_path / "answered"
    controller, terminal = pty.openpty()
    process = subprocess.Popen(
        command(
            f"solve {problem} --solver loopback --time-limit 600 "
            f"--option loopback.act=await --option loopback.until={answered} "
            "--option loopback.report=good"
        ),
        cwd=ROOT,
        stdin=terminal,
        stdout=terminal,
        stderr=terminal,
        env={**os.environ, "TERM": "xterm", "COLUMNS": "120"},
    )
    os.close(terminal)
    chunks = []
    try:
        while chunk := os.read(controller, 4096):
            chunks.append(chunk)
            if b"found one" in b"".join(chunks):
                answered.touch()
    except OSError:  # how Linux says that the other side closed
        pass
    os.close(controller)
    assert process.wait() == 0
    text = b"".join(chunks).decode()
    assert re.search(r"\d s, at most \d+ m?[ins]+ left, best 9e-08 s, ", text)
    assert "bound 6e-08 s, gap 33.33 %" in text
    assert "found one" in text
    assert "step time" in text


def told(err: bytes) -> list[str]:
    """Return lines of standard error without progress of a busy machine."""
    return [
        line
        for line in err.decode().splitlines()
        if not re.search(r": \d+ s, (no time limit|at most)", line)
    ]


def running(elapsed_s: float, solver: str = "dp") -> Running:
    return Running(
        solver=solver,
        elapsed_s=elapsed_s,
        best_quanta=None,
        lower_bound_quanta=None,
        has_plan=True,
        message="",
        quantum_ps=1000,
    )


def test_progress_in_a_pipe_is_a_line_now_and_then() -> None:
    file = io.StringIO()
    progress = ProgressLine("s", file)
    for tenths in range(130):
        progress(running(tenths / 10))
    progress(running(0.5, "milp"))
    progress(running(1.5, "milp"))
    progress.clear()
    assert file.getvalue().splitlines() == [
        "dp: 1 s, no time limit, has a plan",
        "dp: 6 s, no time limit, has a plan",
        "dp: 11 s, no time limit, has a plan",
        "milp: 2 s, no time limit, has a plan",
    ]


def test_nothing_is_said_before_the_input_is_checked() -> None:
    """Bad input costs one line, however busy the machine is."""
    file = io.StringIO()
    progress = ProgressLine("s", file)
    progress(replace(running(9.0), begun=False))
    assert file.getvalue() == ""
    progress(running(9.5))
    assert file.getvalue() == "dp: 10 s, no time limit, has a plan\n"


@pytest.mark.parametrize("jobs", ["1", "2"])
@pytest.mark.parametrize(
    "number",
    [signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGKILL],
    ids=lambda number: number.name,
)
def test_a_run_that_is_stopped_leaves_nothing(
    problem: str, tmp_path: Path, number: signal.Signals, jobs: str
) -> None:
    """No process and no temporary file, wherever its solvers work."""
    pids, temporary = tmp_path / "pids", tmp_path / "temporary"
    temporary.mkdir()
    planner = tmp_path / "hangs.yaml"
    # Many files, so that who removes them meets the others that do.
    script = (
        "i=0; while [ $i -lt 300 ]; do : > $i; i=$((i + 1)); done; "
        f"echo $$ >> {pids}; while :; do sleep 1; done"
    )
    command_line = ["sh", "-c", script, "{problem}", "{plan}"]
    planner.write_text(
        json.dumps(
            {"schema": "nest-planner/1", "name": "hangs", "command": command_line}
        )
    )
    process = subprocess.Popen(
        command(
            f"bench {problem} --solvers {planner} --seeds 0,1 --jobs {jobs} "
            f"-o {tmp_path / 'run'} -q"
        ),
        cwd=ROOT,
        env={**os.environ, "TMPDIR": str(temporary)},
        stderr=subprocess.PIPE,
        text=True,
        # Whoever runs the tests may be deaf to it, as under nohup.
        preexec_fn=lambda: signal.signal(
            signal.SIGINT if number is signal.SIGKILL else number, signal.SIG_DFL
        ),
    )
    wait_until(lambda: pids.exists() and len(pids.read_text().split()) == int(jobs))
    process.send_signal(number)
    _, err = process.communicate()
    if number is signal.SIGKILL:
        assert process.returncode == -number
    else:
        assert process.returncode == 128 + number
        assert len(err.splitlines()) == 1
    started = [int(pid) for pid in pids.read_text().split()]
    wait_until(lambda: not any(map(is_alive, started)))
    wait_until(lambda: not list(temporary.iterdir()))
