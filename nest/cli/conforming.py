"""``nest conform``: whether a solver keeps the contract."""

from __future__ import annotations

import click

from nest.cli.declare import option
from nest.cli.inputs import parse_extra, solver_keyword
from nest.cli.options import Options, takes
from nest.cli.progress import ProgressLine
from nest.util.interrupts import Interrupted


@click.command("conform")
@click.argument("solver_text", metavar="SOLVER")
@option("--promises", "Say what is checked, and run nothing.")
@takes(
    *("time_limit", "extra", "json_path"),
    time_limit="Wall-clock seconds per run.  [default: 10]",
)
def conform_command(options: Options, solver_text: str, promises: bool) -> int:
    """Check that a solver keeps its promises, on problems with known optima.

    SOLVER is a name, see 'nest solvers', or a file that describes a command.
    Every run goes through the runner and the judge of 'nest compare'. What
    is promised is in docs/your-planner.md.

    Exits with 1 if a promise is broken. Ctrl-C shows what is known by then.
    """
    from nest.conform import CHECKS, conform
    from nest.conform.run import TIME_LIMIT_S
    from nest.present.conform import conform_block
    from nest.present.table import key_lines, show

    if promises:
        show(
            options.people,
            key_lines([(check.name, check.meaning) for check in CHECKS]),
        )
        return 0
    options.check_files()
    name = solver_keyword(solver_text)
    extra = parse_extra(options.extra, [name]).get(name, {})
    stop: Interrupted | None = None
    with ProgressLine("s") as progress:
        try:
            report = conform(
                name,
                time_limit_s=options.time_limit or TIME_LIMIT_S,
                extra=extra,
                on_progress=progress,
            )
        except Interrupted as interrupt:
            report, stop = interrupt.found, interrupt
    show(options.people, *conform_block(report))
    options.write_json(report.to_json())
    if stop is not None:
        raise stop
    return int(bool(report.failed))
