"""Explanations of plans for people."""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Sequence
from fractions import Fraction

from rich.console import RenderableType
from rich.padding import Padding

from nest.analysis.explain import Explanation
from nest.cost.breakdown import STEP_TERMS
from nest.present.comparison import EQUAL_MEANING
from nest.present.screen import degrees, plan_rows, screen, stage_parts
from nest.present.table import key_lines, note, percent, status_text, terminal_table
from nest.present.verbosity import VERBOSE
from nest.solvers.base import Status
from nest.solvers.result import SolveResult
from nest.units import format_bytes
from nest.util.tables import Column, Table
from nest.util.time_scale import TimeScale


def explanation_block(
    explained: Explanation, notes: Sequence[str], target: str = ""
) -> list[RenderableType]:
    """Return an explanation, one part after the other.

    FLOPs are counted as ``target`` does in its log.
    """
    problem, plan = explained.problem, explained.plan
    rows = plan_rows(problem, plan, explained.score, target)
    if explained.optimum is not None:
        rows.append(("proof", _best_text(explained, explained.optimum)))
    rows += [("assumed", text) for text in notes]
    items = screen(problem, rows)
    if VERBOSE.get():
        items += stage_parts(problem, plan, explained.score)
    for title, body in (
        ("Where the step time goes", _term_lines(explained)),
        ("What would explain the measured step", _measured_lines(explained)),
        ("What bounds it", _bound_lines(explained)),
        ("What a neighboring plan takes", _neighbor_lines(explained)),
        ("What the preferred setting costs", _preferred_lines(explained)),
    ):
        if body:
            items.append(Padding(title, (1, 0, 0, 0)))
            items += body
    return items


def _term_lines(explained: Explanation) -> list[RenderableType]:
    terms, blocks = explained.terms, explained.score.blocks
    step = explained.score.step_quanta
    rows = [
        (STEP_TERMS[name], _quanta(explained, value), _share(value, step))
        for name, value in sorted(terms.step.items(), key=lambda item: -item[1])
        if value
    ]
    what = "block" if len(blocks) < len(explained.score.stages) else "stage"
    slow, full = terms.slowest, explained.fullest
    memory = ", ".join(
        f"{name.removesuffix('_bytes')} {format_bytes(size)}"
        for name, size in blocks[full].memory.items()
        if size
    )
    columns = (
        Column("term", min_width=16),
        Column("time", rank=1),
        Column("share", rank=2, min_width=20),
    )
    load = _quanta(explained, blocks[slow].load)
    slowest = f"{slow + 1} of {len(blocks)}, {load} per micro-batch"
    facts = [
        (f"slowest {what}", f"{slowest}, counted {terms.num_loads} times"),
        ("fullest device", f"in {what} {full + 1}: {memory}"),
    ]
    return [terminal_table(Table(columns, rows)), key_lines(facts)]


def _measured_lines(explained: Explanation) -> list[RenderableType]:
    """Return which terms would have to be off, and the experiment that tells."""
    measured = explained.measured
    if measured is None:
        return []
    scale = TimeScale.fitting(measured.predicted_ns, explained.problem.time_unit)
    within = {
        True: "within the interval of nine in ten: nothing needs to be off",
        False: "outside the interval of nine in ten",
        None: "nothing is known of errors here",
    }
    ratio = measured.measured_ns / measured.predicted_ns
    step = f"{scale.short(measured.measured_ns)}, {ratio:.2f} times the prediction"
    facts = [("measured", f"{step}; {within[measured.within_90]}")]
    if all(x.plausible == "no" for x in measured.hypotheses):
        text = "explains it alone: check its unit, the batch and the devices"
        facts.append(("no term", text))
    if measured.near_the_end:
        text = "nearly full: the allocator may free and allocate again"
        facts.append(("memory", text))
    experiment = measured.experiment
    if experiment is not None:
        texts = {x.term.name: x.term.text for x in measured.hypotheses}
        steps = "; ".join(
            f"{scale.short(step_ns)} if {texts[name]}"
            for name, step_ns in experiment.steps_ns.items()
        )
        confused = ", ".join(
            f"{texts[first]} and {texts[second]}"
            for first, second in experiment.confused
        )
        steps += (
            f"; it does not tell apart: {confused}"
            if confused
            else f"; at least {100 * math.expm1(experiment.separation):.0f} % apart"
        )
        detail = f" ({experiment.detail})" if experiment.detail else ""
        facts.append(("experiment", f"{experiment.name}{detail}: {steps}"))
    columns = (
        Column("term", form=lambda term: term.text, min_width=16),
        Column("exposed_ns", "doubled adds", scale.short, rank=1),
        Column("factor", form=lambda x: "none" if x is None else f"{x:.2f}"),
        Column("plausible"),
        Column("cause", "likely cause", rank=2, min_width=20),
    )
    table = Table.of(columns, measured.hypotheses)
    return [terminal_table(table), key_lines(facts)]


def _bound_lines(explained: Explanation) -> list[RenderableType]:
    optimum = explained.optimum
    if optimum is None:
        return []
    best = optimum.step_quanta
    binding = explained.binding
    text = "none of these alone gains anything"
    if binding is not None:
        text = binding.name
    elif best is None:
        text = "unknown"
    table = []
    for relaxed in explained.relaxed:
        quanta = relaxed.step_quanta
        time, gain, proof = "", "", status_text(relaxed.result)
        if quanta is not None:
            time, gain = _quanta(explained, quanta), "a plan fits"
            proof = "proven" if relaxed.proven else "best known"
            if best is not None:
                less = quanta < best
                gain = _share(best - quanta, best) if less else "nothing"
        table.append((relaxed.name, time, gain, proof))
    columns = (
        Column("if", min_width=20),
        Column("best step"),
        Column("gain"),
        Column("proof", rank=1, min_width=10),
    )
    return [key_lines([("binding", text)]), terminal_table(Table(columns, table))]


def _best_text(explained: Explanation, optimum: SolveResult) -> str:
    """Return what is known about the best plan, and how far this one is."""
    best, step = optimum.step_quanta, explained.score.step_quanta
    if best is None:
        texts = [status_text(optimum), note(optimum)]
        if optimum.lower_bound_quanta is not None:
            bound = _quanta(explained, optimum.lower_bound_quanta)
            texts.append(f"a step takes at least {bound}")
        return ", ".join(filter(None, texts))
    proof = "proven"
    if optimum.status is not Status.OPTIMAL:
        proof = "best known"
        if optimum.lower_bound_quanta is not None:
            proof += f", at least {_quanta(explained, optimum.lower_bound_quanta)}"
    if not explained.score.feasible:
        distance = "the plan itself does not fit"
    elif best == step:
        distance = "the plan is as good"
    elif best > step:
        distance = "the plan is better"
    else:
        distance = f"the plan takes {_share(step - best, best)} more"
        if explained.equal_to_best:
            distance += ", equal within the noise"
    return f"best plan {_quanta(explained, best)} ({proof}); {distance}"


def _neighbor_lines(explained: Explanation) -> list[RenderableType]:
    capacity = explained.problem.cluster.memory_bytes()
    step = explained.score.step_quanta
    plan_bytes = explained.score.blocks[explained.fullest].memory_bytes
    # What fits first, then what does not, what is illegal last.
    order = ("fits", "too large", "illegal")
    rows, illegal = [], []
    for near, same in sorted(
        zip(explained.neighbours, explained.equal, strict=True),
        key=lambda pair: (
            order.index(pair[0].verdict),
            pair[0].score.step_quanta if pair[0].score else 0,
        ),
    ):
        if near.score is None:
            # What is wrong with it; the remedy is for plans made by hand.
            reason = near.reason.split("; ")[0]
            if VERBOSE.get():
                rows.append((near.name, "", "", "", f"illegal: {reason}"))
            else:
                illegal.append(reason)
            continue
        note = near.detail
        if near.verdict == "too large":
            excess = format_bytes(near.memory_bytes - capacity)
            note = "; ".join(filter(None, (f"does not fit by {excess}", note)))
        difference = near.score.step_quanta - explained.score.step_quanta
        memory = near.memory_bytes - plan_bytes
        rows.append(
            (
                near.name,
                _signed(difference, _quanta(explained, abs(difference))),
                _signed(difference, _share(abs(difference), step))
                + " *" * bool(same and difference),
                _signed(memory, format_bytes(abs(memory))),
                note,
            )
        )
    columns = (
        Column("move", min_width=30),
        Column("step time", rank=3),
        Column("share"),
        Column("memory", rank=2),
        Column("note", rank=1, min_width=20),
    )
    items: list[RenderableType] = []
    if rows:
        items.append(terminal_table(Table(columns, rows)))
    if any(row[2].endswith("*") for row in rows):
        items.append(EQUAL_MEANING)
    if illegal:
        items.append(_illegal_line(illegal))
    return items


def _illegal_line(reasons: Sequence[str]) -> str:
    """Return how many moves are illegal and why, without places and values."""
    counts = Counter(
        re.sub(r"^(stage \d+: |layer '.*?': )*|,? (\(.*?\), )?got .*", "", text)
        for text in reasons
    )
    text_of_reasons = "; ".join(
        f"{count} × {text}" if count > 1 else text for text, count in counts.items()
    )
    moves = "1 move is" if len(reasons) == 1 else f"{len(reasons)} moves are"
    return f"{moves} illegal (--verbose says which): {text_of_reasons}"


def _preferred_lines(explained: Explanation) -> list[RenderableType]:
    preferred = explained.preferred
    if preferred is None:
        return []
    result = preferred.result
    if result.step_quanta is None or preferred.terms is None:
        text = f"{status_text(result)} {note(result)}".strip()
        return [key_lines([(preferred.text, text)])]
    step = explained.score.step_quanta
    difference = result.step_quanta - step
    proof = "proven" if result.status == "optimal" else "best known"
    more = "more" if difference > 0 else "less"
    distance = "as long as the plan"
    if difference:
        distance = f"{_share(abs(difference), step)} {more} than the plan"
    plan, verdict = result.plan, result.score
    assert plan is not None
    assert verdict is not None
    best = f"at best {_quanta(explained, result.step_quanta)} ({proof})"
    rows = [
        (preferred.text, f"{best}, {distance}"),
        ("its plan", degrees(explained.problem, plan, verdict.num_micro_batches)),
    ]
    table = [
        (
            STEP_TERMS[name],
            _quanta(explained, explained.terms.step[name]),
            _quanta(explained, value),
            _signed(change, _quanta(explained, abs(change))),
        )
        for name, value in preferred.terms.step.items()
        if (change := value - explained.terms.step[name])
    ]
    items = [key_lines(rows)]
    if table:
        columns = (
            Column("term", min_width=16),
            Column("plan", rank=1),
            Column("preferred", rank=2),
            Column("difference"),
        )
        items.append(terminal_table(Table(columns, table)))
    return items


def _quanta(explained: Explanation, quanta: int | Fraction) -> str:
    problem = explained.problem
    scale = TimeScale.fitting(explained.score.step_time_ns, problem.time_unit)
    return scale(float(quanta * problem.quantum_ps / 1000))


def _share(amount: int | Fraction, whole: int | Fraction) -> str:
    return f"{percent(Fraction(amount) / whole)} %" if whole else "0 %"


def _signed(value: int, text: str) -> str:
    return f"{'+' if value > 0 else '-' if value < 0 else '±'}{text}"
