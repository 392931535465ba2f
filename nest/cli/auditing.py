"""``nest audit``: questions about planners, with what was found."""

from __future__ import annotations

import sys
from contextlib import nullcontext
from pathlib import Path

import click

from nest.cli.declare import option
from nest.cli.inputs import write_text
from nest.cli.progress import StatusLine, hint
from nest.cli.saying import say_data
from nest.requests.values import also_needed
from nest.util.files import check_output
from nest.util.interrupts import Ending


@click.command("audit")
@click.argument("name", metavar="[NAME]", required=False)
@option("-o --output DIR", "New directory for audit.md, audit.json and plot.svg.")
@option("--data DIR", "Folder of published data instead of those of the package.")
@option("--quick", "Only a part of it, in about a minute.")
def audit_command(
    name: str | None, output: str | None, data: str | None, quick: bool
) -> int:
    """Answer a question about planners: method, tables, plot and limits.

    Without NAME the audits are listed. The page is printed to the width of a
    terminal, and elsewhere as Markdown; docs/audits.md shows what was found.
    """
    from nest.present.table import key_lines, show
    from nest.studies import get_study, study_names

    if name is None:
        options = {"-o": output, "--data": data, "--quick": quick or None}
        for option_name, value in options.items():
            if value is not None:
                remedy = f"choose one of {', '.join(study_names())}"
                raise also_needed(option_name, "NAME of an audit", remedy)
        rows = [(each, get_study(each).question) for each in study_names()]
        show(sys.stdout, key_lines(rows))
        return 0
    study = get_study(name)
    check_output(output, "-o", folder=True)
    from nest.present.pages.study import PAGE, files, to_markdown
    from nest.studies.study import StudySetting, published_data

    with (
        nullcontext(data) if data else published_data(study) as folder_of_data,
        StatusLine() as line,
        Ending(lambda: _end(line)) as ending,
    ):
        setting = StudySetting(
            quick=quick,
            data=Path(folder_of_data),
            say=lambda text: line.update(f"{name}: {text}"),
            over=lambda: ending.asked is not None,
        )
        study.check(setting)
        try:
            findings = study.run(setting)
        except Exception:
            if ending.asked is None:
                raise
            # There is too little to say anything.
            ending.stop(None)
    if ending.asked is not None:
        early = "Interrupted: only what was done by then is counted."
        answers = (early, *findings.answers)
        findings = findings._replace(answers=answers)
    page = to_markdown(study, findings, quick)
    if output is not None:
        written = files(study, findings, quick)
        Path(output).mkdir(exist_ok=True)
        for file_name, text in written.items():
            write_text(str(Path(output) / file_name), text)
        page = written[PAGE]
    if sys.stdout.isatty():
        from nest.present.audit import audit_block

        show(sys.stdout, *audit_block(study, findings, quick))
    else:
        say_data(page)
    if ending.asked is not None:
        ending.stop(findings)
    return 0


def _end(line: StatusLine) -> None:
    """Say that what is known will be written."""
    line.clear()
    hint("nest: ending after this case; once more stops at once")
