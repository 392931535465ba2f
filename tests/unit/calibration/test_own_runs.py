"""A user's own runs: the update, what is refused, and which runs to do next.

The parameters and the stored fit are data that fits change: no test knows their values.
"""

from __future__ import annotations

import dataclasses
import json
import math
import re
from typing import Any

import msgspec
import numpy as np
import pytest
import yaml
from msgspec.structs import replace

from bench.result_files import ROOT
from nest.calibration.design import (
    PROPOSED,
    Candidates,
    candidates,
    choose,
    propose,
    spread_of,
)
from nest.calibration.document import to_document
from nest.calibration.evidence import Evidence
from nest.calibration.fit import NOISE, Fit, Linear, solve
from nest.calibration.parameters import PARAMETERS, Parameter, options_of
from nest.calibration.runs import (
    InvalidRunsError,
    Learned,
    common_factor,
    learn,
    noise_scale,
    prior_of,
    read_runs,
    runs_of,
)
from nest.calibration.stored import stored_fit
from nest.calibration.template import TEMPLATE, planned_csv, template_csv
from nest.hardware import machine, parse_clusters
from nest.hardware.calibration import CalibrationFile
from nest.hardware.calibration_file import (
    InvalidCalibrationError,
    calibrated_parts,
    calibration_for,
    read_calibration,
)
from nest.ir.io import encode
from nest.uncertainty.intervals import stored_deviations
from nest.validation.predict import (
    Prediction,
    PredictOptions,
    Skip,
    predict,
    predict_under,
)
from nest.validation.reading import parse_rows
from nest.validation.rows import Row

#: A run that predictions know: fields of a row, without a step time.
RUN: dict[str, Any] = {
    "hardware": "A100-80GB-SXM",
    "devices_per_node": 8,
    "num_devices": 8,
    "model": "small",
    "layers": 8,
    "hidden": 2048,
    "heads": 16,
    "kv_heads": 16,
    "ffn_hidden": 8192,
    "gated_mlp": False,
    "vocab": 32000,
    "seq_len": 2048,
    "global_batch": 64,
    "micro_batch": 1,
    "tp": 1,
    "pp": 1,
    "dp": 8,
    "cp": 1,
    "zero_stage": 1,
    "recompute": "none",
    "precision_class": "bf16",
    "framework": "Megatron-Core",
}

#: What differs between the runs.
SHAPES: tuple[dict[str, Any], ...] = (
    {},
    {"micro_batch": 4},
    {"tp": 8, "dp": 1},
    {"hidden": 512, "ffn_hidden": 2048, "heads": 8, "kv_heads": 8},
    {"seq_len": 8192, "global_batch": 16},
    {"pp": 4, "dp": 2},
)


def predicted_s(row: Row, options: PredictOptions | None = None) -> float:
    answer = predict(row) if options is None else predict(row, options)
    assert isinstance(answer, Prediction)
    assert answer.step_time_s is not None
    return answer.step_time_s


def rows_under(options: PredictOptions | None = None) -> list[Row]:
    """Return runs that take exactly what predictions say under options."""
    rows = [Row(line=line, **RUN | s) for line, s in enumerate(SHAPES, 2)]
    return [replace(row, iter_time_s=predicted_s(row, options)) for row in rows]


def slowed(row: Row, factor: float) -> Row:
    """Return a run whose step takes another time."""
    return replace(row, iter_time_s=factor * (row.iter_time_s or 0))


def document_without_proposals(learned: Learned) -> dict[str, Any]:
    nothing = Candidates((), np.zeros((0, len(learned.after.x))))
    return to_document(learned, nothing, propose(learned, nothing))


@pytest.fixture(scope="module")
def learned() -> Learned:
    """Runs a tenth slower than the prior predicts."""
    before = prior_of({"A100"})
    rows = rows_under(options_of(before.values, before.parameters))
    slower = [slowed(row, 1.1) for row in rows]
    return learn(runs_of(slower, "folder/runs.csv"))


# The update


def test_the_calibration_says_what_the_runs_leave_unknown(learned):
    """Runs that predictions follow exactly: less noise, devices known."""
    runs = learned.file.own_runs
    assert (runs.runs, runs.family) == (len(SHAPES), "A100")
    assert runs.software == ("Megatron-Core",)
    stored = stored_deviations()
    assert runs.noise < stored.noise
    assert runs.covariance[0][0] < stored.device**2


SLOWDOWN = Parameter(name="every.slowdown", value=1, deviation=0.1, spread=0.06)


def no_rows(count: int) -> Evidence:
    """Return evidence of which only groups and noise count."""
    return Evidence((), ("X",) * count, ("own",) * count, np.ones(count))


def test_one_parameter_and_two_rows_by_hand():
    """The posterior of a normal prior and two normal observations.

    Prior deviation 0.1, so information 100. Rows with the noise r = 0.05
    and slopes 1 and 2 add (1 + 4) / 0.0025 = 2000; predictions are off by
    0.1 and 0.3, so the gradient is (0.1 + 2·0.3) / 0.0025 = 280. The
    logarithm becomes 0 - 280 / 2100 = -2/15, its deviation 2100^-1/2.
    """
    assert NOISE == 0.05
    before = Fit((SLOWDOWN,), np.zeros(1), np.array([[0.01]]))
    linear = Linear(np.zeros(1), np.array([0.1, 0.3]), np.array([[1.0], [2.0]]))
    after = solve(before, linear, no_rows(2), rounds=1)
    assert after.x == pytest.approx([-2 / 15])
    assert after.deviations == pytest.approx([2100**-0.5])
    assert after.values == {"every.slowdown": pytest.approx(math.exp(-2 / 15))}


def test_an_odd_row_moves_less_than_its_share():
    """Two rows agree, the third is far: the answer is near the two."""
    before = Fit((SLOWDOWN,), np.zeros(1), np.array([[1.0]]))
    linear = Linear(np.zeros(1), np.array([0.0, 0.0, 0.6]), np.array([[1.0]] * 3))
    evidence = no_rows(3)
    once = solve(before, linear, evidence, rounds=1)
    after = solve(before, linear, evidence, rounds=20)
    assert once.x == pytest.approx([-0.2], rel=1e-2)
    assert abs(after.x[0]) < 0.05


def test_the_prior_is_the_stored_fit_with_the_spreads_of_sources():
    """What concerns the family, each as uncertain as a new source's."""
    common, before = stored_fit(), prior_of({"A100"})
    assert {p.family for p in before.parameters} == {
        p.family for p in PARAMETERS if p.concerns("A100")
    }
    index = [common.parameters.index(p) for p in before.parameters]
    spreads = np.array([p.spread for p in before.parameters])
    assert before.x == pytest.approx(common.x[index])
    assert before.deviations**2 == pytest.approx(
        common.deviations[index] ** 2 + spreads**2
    )


@pytest.mark.parametrize("seed", [1, 2, 3])
def test_runs_of_known_parameters_bring_the_fit_closer_to_them(seed):
    """In units of what the parameters are uncertain by before the runs.

    Were step times linear, exact runs would project onto what agrees with
    them, which is never farther from the truth.
    """
    before = prior_of({"A100"})
    draw = np.random.default_rng(seed)
    most = np.log([p.most for p in before.parameters])
    truth = np.minimum(draw.multivariate_normal(before.x, before.covariance), most)
    values = dict(zip((p.name for p in before.parameters), np.exp(truth), strict=True))
    rows = rows_under(options_of(values, before.parameters))
    found = learn(runs_of(rows))

    def distance(x: Any) -> float:
        off = x - truth
        return float(off @ np.linalg.solve(before.covariance, off))

    assert distance(found.after.x) < distance(before.x)
    assert np.abs(found.errors_after).max() < 0.05
    assert np.abs(found.errors_after).max() < np.abs(found.errors_before).max()
    assert (found.after.deviations < found.before.deviations + 1e-9).all()


def test_runs_a_tenth_slower(learned):
    """Predictions before are 1/1.1 of what was measured."""
    assert np.exp(learned.errors_before) == pytest.approx(1 / 1.1)
    assert np.abs(learned.errors_after).max() < 0.04
    assert np.abs(learned.errors_left_out).max() < 0.06


def test_what_dense_bf16_runs_cannot_tell(learned):
    """No run routes tokens, so nothing is said about what routing takes."""
    names = [p.name for p in learned.after.parameters]
    untold = {names[k] for k in learned.untold}
    assert "every.routing_passes" in untold
    assert "every.slowdown" not in untold
    document = document_without_proposals(learned)
    entries = {entry["name"]: entry for entry in document["parameters"]}
    assert entries["every.routing_passes"]["untold"]
    assert not entries["every.routing_passes"]["in_runs"]
    assert entries["every.slowdown"]["in_runs"]


# The file


def test_the_file_predicts_as_the_fit_and_reads_back(learned, tmp_path):
    """Values are written to four digits."""
    path = tmp_path / "my.calibration.json"
    path.write_bytes(encode(learned.file))
    found = read_calibration(path)
    assert found == learned.file
    assert list(found.families) == ["A100"]
    assert "6 runs of runs.csv on A100-80GB-SXM" in (found.families["A100"].provenance)
    assert "folder" not in path.read_text()
    options = options_of(learned.after.values, learned.after.parameters)
    for row in learned.runs.rows:
        under = predict_under(row, found)
        assert isinstance(under, Prediction)
        assert under.step_time_s == pytest.approx(predicted_s(row, options), rel=2e-3)


def test_the_file_is_of_its_device_alone(learned):
    """Devices that take the same stored parameters are other devices."""
    row = Row(**RUN | {"hardware": "A800-80GB"})
    assert predict_under(row, learned.file) == Skip(
        "a device that the calibration is not of"
    )
    assert predict_under(Row(**RUN | {"hardware": "abacus"}), learned.file) == Skip(
        "unknown device"
    )
    with pytest.raises(
        InvalidCalibrationError,
        match=r"my\.json: expected a calibration of H100, got one of A100; "
        r"leave --calibration out, or calibrate with runs on H100",
    ):
        calibration_for(learned.file, "H100", "my.json")
    with pytest.raises(InvalidCalibrationError, match="of H100"):
        calibrated_parts(parse_clusters("a100x8+h100x8"), learned.file, "my.json")


def test_a_device_that_is_taken_to_be_alike_may_inherit(learned):
    """A800 takes A100's stored parameters, H100 has its own."""
    with pytest.raises(
        InvalidCalibrationError,
        match=r"of A800, got one of A100; .*, or, as A800 and A100 are taken "
        r'to be alike where nothing is known, add "A800": "A100" to its '
        r"inherits$",
    ):
        calibration_for(learned.file, "A800", "my.json")
    with pytest.raises(InvalidCalibrationError, match=r"with runs on H100$"):
        calibration_for(learned.file, "H100", "my.json")


def test_machines_take_it(learned):
    ((site, count),) = calibrated_parts([(machine("a100"), 8)], learned.file, "my.json")
    assert count == 8
    assert site.calibration == learned.file.families["A100"]
    assert site.device == machine("a100").device


def test_a_family_may_inherit(learned):
    found = replace(learned.file, inherits={"A800": "A100"})
    assert calibration_for(found, "A800", "") == found.families["A100"]


#: Where a file is changed, to what (``None`` takes it out), and the message.
BAD_FILES: list[tuple[str, Any, str]] = [
    (
        "families",
        {},
        r"families: expected a device family, got none; make the file with "
        r"'nest calibrate'",
    ),
    ("inherits", {"A800": "V100"}, r"inherits\.A800: expected one of A100, got 'V100'"),
    (
        "software.overlap.tp",
        None,
        r"software\.overlap: expected tp, cp, .*, got no tp; add it",
    ),
    (
        "software.overlap.tp",
        1.5,
        r"software\.overlap\.tp: expected a number from 0 to 1, got 1\.5",
    ),
    (
        "families.A100.matmul_fraction",
        0,
        r"families\.A100\.matmul_fraction: expected a finite number > 0 "
        r"and <= 1, got 0; correct it",
    ),
    (
        "families.A100.matmul_fraction",
        5,
        r"matmul_fraction: expected a finite number > 0 and <= 1, got 5",
    ),
    (
        "families.A100.low_precision_fraction",
        5,
        r"low_precision_fraction: expected .* and <= 4, got 5",
    ),
    (
        "families.A100.routing_passes",
        1e6,
        r"routing_passes: expected .* and <= 1000, got 1e\+06",
    ),
    (
        "families.A100.host_ns",
        -1,
        r"A100\.host_ns: expected a finite number >= 0 and <= 1e\+08, "
        r"got -1",
    ),
    ("families.A100.matmul_fractoin", 0.5, r"matmul_fractoin"),
    ("schema", "nest-problem/1", r"schema: expected 'nest-calibration/1', got"),
    (
        "families.A100.host_ns",
        math.inf,
        r"A100\.host_ns: expected a finite number .*, got inf",
    ),
]


@pytest.mark.parametrize(("path", "value", "message"), BAD_FILES)
def test_bad_files(learned, tmp_path, path, value, message):
    """YAML has infinite numbers too, JSON has none."""
    document = msgspec.json.decode(encode(learned.file))
    *folders, name = path.split(".")
    place = document
    for folder in folders:
        place = place[folder]
    if value is None:
        del place[name]
    else:
        place[name] = value
    file = tmp_path / ("my.yaml" if value == math.inf else "my.json")
    text = yaml.safe_dump if value == math.inf else json.dumps
    file.write_text(text(document))
    with pytest.raises(InvalidCalibrationError, match=message):
        read_calibration(file)


def test_no_file(tmp_path):
    with pytest.raises(InvalidCalibrationError, match="expected a"):
        read_calibration(tmp_path / "none.json")


# Runs that cannot calibrate


@pytest.mark.parametrize(
    ("count", "changes", "message"),
    [
        (
            1,
            {},
            r"runs\.csv: expected at least 2 runs with a step time that "
            r"can be predicted, got 1 \(line 2\) of 1; add runs",
        ),
        (1, {"tp": None}, r"got none of 1; line 2: mesh not stated: tp"),
        (
            2,
            {"iter_time_s": 1e-6},
            r"runs\.csv:3: step time: expected at least .* correct the row",
        ),
        (
            2,
            {"peak_mem_gb": 200.0, "mem_unit": "GiB"},
            r"runs\.csv:3: memory: expected at most",
        ),
    ],
)
def test_runs_that_are_refused(count, changes, message):
    """Of some rows the last one is changed."""
    *rows, last = rows_under()[:count]
    with pytest.raises(InvalidRunsError, match=message):
        runs_of([*rows, replace(last, **changes)], "runs.csv")


def test_two_devices_in_one_file():
    first, second, third, *_ = rows_under()
    rows = [first, replace(second, hardware="H100-80GB-SXM"), third]
    with pytest.raises(
        InvalidRunsError,
        match=r"expected runs of one cluster, got A100-80GB-SXM \(line 2\) "
        r"and H100-80GB-SXM \(line 3\); choose one with --hardware "
        r"A100-80GB-SXM, or put them into two files",
    ):
        runs_of(rows, "runs.csv")
    found = runs_of(rows, "runs.csv", hardware="a100")
    assert [row.line for row in found.rows] == [2, 4]
    assert found.unused == ((3, "left out by --hardware a100"),)


def test_two_networks_in_one_file():
    first, second, third, *_ = rows_under()
    rows = [
        replace(first, interconnect="NDR 400 Gb/s per GPU"),
        replace(second, interconnect="RoCE 100 Gb/s per GPU"),
        replace(third, interconnect="NDR 400 Gb/s per GPU"),
    ]
    with pytest.raises(
        InvalidRunsError,
        match=r"got nodes of 8 on InfiniBand NDR with 50 GB/s per device "
        r"\(line 2\) and nodes of 8 on RoCE 100 with 12\.5 GB/s per device "
        r"\(line 3\); choose one with --interconnect TEXT",
    ):
        runs_of(rows)
    assert len(runs_of(rows, interconnect="NDR").rows) == 2


def test_two_sizes_of_nodes_in_one_file():
    """The first three of eight devices, one of four."""
    first, second, third, *_ = rows_under()
    rows = [first, second, replace(third, devices_per_node=4)]
    with pytest.raises(
        InvalidRunsError,
        match=r"got nodes of 8 on .* \(line 2\) and nodes of 4 on .* "
        r"\(line 4\); choose one with --devices-per-node 8, or put",
    ):
        runs_of(rows)
    found = runs_of(rows, devices_per_node=8)
    assert [row.line for row in found.rows] == [2, 3]
    assert found.unused == ((4, "left out by --devices-per-node 8: 4"),)


@pytest.mark.parametrize(
    ("factor", "message"),
    [
        (
            1000.0,
            r"runs\.csv: expected step times near the predicted ones, got "
            r"1e\+03 times as long in the median \(line \d: .* s, predicted "
            r".* s\); are these milliseconds\? iter_time_s is in seconds$",
        ),
        (
            20.0,
            r"got 20 times as long .*; check what was timed, and the shape "
            r"and batch of the runs$",
        ),
    ],
)
def test_step_times_in_another_unit(factor, message):
    rows = [slowed(row, factor) for row in rows_under()]
    with pytest.raises(InvalidRunsError, match=message):
        learn(runs_of(rows, "runs.csv"))


@pytest.mark.parametrize(
    ("factor", "count", "text"),
    [
        (3.0, 6, "all runs alike are 3 times as slow as predicted"),
        (2.0, 5, "all runs alike are 2 times as slow as predicted"),
        (0.7, 6, "all runs alike are 1.4 times as fast as predicted"),
    ],
)
def test_a_cluster_that_is_slower_as_a_whole_is_learned(factor, count, text):
    """The prior of one factor lies where all runs are, if the user accepts that."""
    rows = [slowed(row, factor) for row in rows_under()[:count]]
    learned = learn(runs_of(rows), accept=True)
    assert learned.factor == pytest.approx(factor, rel=0.1)
    assert np.abs(learned.errors_after).max() < 0.06
    assert learned.odd == []
    notes = document_without_proposals(learned)["notes"]
    assert any(note.startswith(text) for note in notes)


def test_when_runs_are_off_alike():
    """By more than 1.25, and apart by a third of that at most."""
    assert common_factor(np.array([-1.0, -1.1, -0.9])) == pytest.approx(math.e)
    assert common_factor(np.array([-1.0, -1.1])) == 1
    assert common_factor(np.array([-0.2, -0.2, -0.2])) == 1
    assert common_factor(np.array([-1.0, -0.5, -1.5])) == 1
    assert common_factor(np.array([-1.0, -0.7, -1.3])) == pytest.approx(math.e)


def test_runs_that_disagree_with_the_others_are_named():
    rows = rows_under()
    rows[2] = slowed(rows[2], 8)
    learned = learn(runs_of(rows))
    assert learned.odd == [2]
    notes = document_without_proposals(learned)["notes"]
    assert any(
        re.match(r"line 4: [789]\.\d times as slow as the others say", note)
        for note in notes
    )


def test_few_runs_and_memory_are_told():
    rows = [replace(row, peak_mem_gb=40.0) for row in rows_under()[:3]]
    learned = learn(runs_of(rows))
    few, open_settings, memory = document_without_proposals(learned)["notes"]
    assert few.startswith("3 runs are few: ")
    # The runs above state all but their network.
    assert open_settings == (
        "not stated: interconnect in 3 runs; taken is what software and "
        "machine have by default (docs/validation.md): state what you know"
    )
    assert memory == (
        "memory of 3 runs (peak_mem_gb, line 2): held against the device's, not fitted"
    )


def one_parameter(errors: list[float]) -> tuple[Fit, Linear, Evidence]:
    """Return rows of one slowdown that is nearly known."""
    before = Fit((SLOWDOWN,), np.zeros(1), np.array([[1e-8]]))
    count = len(errors)
    linear = Linear(np.zeros(1), np.array(errors), np.ones((count, 1)))
    rows = (Row(),) * count
    return before, linear, dataclasses.replace(no_rows(count), rows=rows)


def test_the_scatter_of_runs_by_hand():
    """Errors of z scales, where the parameter cannot move.

    The factor k solves k² (4 + n) = 4 + n k² · 3 z² / (2 k² + z²). With
    n = 4 and z² = 12 it is 2: 4 · 8 = 4 + 4 · 4 · 36 / 20 would be 32.8, so
    k² is a little above 4. As many runs without any error halve k² = 4 / 8.
    """
    z = 12**0.5 * NOISE
    scale = noise_scale(*one_parameter([z, -z, z, -z]))
    squared = scale**2
    assert 8 * squared == pytest.approx(
        4 + 4 * squared * 36 / (2 * squared + 12), rel=0.02
    )
    assert 4 < squared < 4.4
    quiet = noise_scale(*one_parameter([0.0] * 4))
    assert quiet**2 == pytest.approx(0.5)


def test_claims_agree_with_what_is_left():
    """Runs that scatter by 15 % are not predicted to 5 %."""
    rows = [
        replace(slowed(row, 1.15 if line % 2 else 1 / 1.15), line=line)
        for line, row in enumerate([*rows_under(), *rows_under()], 2)
    ]
    learned = learn(runs_of(rows))
    left = float(np.quantile(np.abs(learned.errors_left_out), 2 / 3))
    variances = np.einsum(
        "ij,jk,ik->i", learned.slopes, learned.after.covariance, learned.slopes
    )
    claimed = math.hypot(learned.noise, math.sqrt(variances.mean()))
    assert 0.6 * left < claimed < 1.6 * left
    assert learned.scale > 1.2


def test_rows_that_are_not_used_say_why():
    first, second, *rest = rows_under()
    found = runs_of(
        [
            first,
            second,
            replace(rest[0], status="OOM"),
            replace(rest[1], iter_time_s=None, peak_mem_gb=9.0, mem_unit="GiB"),
            replace(rest[2], recompute="a bit"),
        ]
    )
    assert [row.line for row in found.rows] == [2, 3]
    assert found.unused == (
        (4, "the run went out of memory, and only step times are fitted"),
        (5, "no measured step time"),
        (6, "recomputation that no plan expresses"),
    )


# What to run next


def test_a_run_that_tells_something_new_comes_before_a_known_one():
    """Two parameters, the first known to 1 %, the second to 50 %."""
    covariance = np.diag([0.01**2, 0.5**2])
    slopes = np.array([[1.0, 0.0], [1.0, 0.0], [0.5, 0.5]])
    (number, left), (second, after) = choose(slopes, covariance, 0.05, 2)
    assert number == 2
    assert second != 2
    assert after <= left < spread_of(slopes, covariance)


def test_the_gain_of_a_run_by_hand():
    """One parameter with variance 4, noise 1, runs with slopes 1 and 2.

    Uncertainties are 4 and 16, mean 10. The run of slope 2 leaves the
    variance 4 - 8²/(1 + 16) = 4/17, so (4/17)(1 + 4)/2 = 10/17; that of
    slope 1 leaves 4 - 4²/5 = 4/5, so 2.
    """
    slopes, covariance = np.array([[1.0], [2.0]]), np.array([[4.0]])
    assert spread_of(slopes, covariance) == pytest.approx(10**0.5)
    ((number, left),) = choose(slopes, covariance, 1.0, 1)
    assert number == 1
    assert left == pytest.approx((10 / 17) ** 0.5)


def test_no_more_runs_than_there_are():
    assert choose(np.zeros((0, 2)), np.eye(2), 0.05, 3) == []
    assert len(choose(np.ones((2, 2)), np.eye(2), 0.05, 3)) == 2


@pytest.fixture(scope="module")
def offered(learned) -> Candidates:
    return candidates(learned)


def test_candidates_are_new_runs_that_fit(learned, offered):
    def cells(row: Row) -> tuple[object, ...]:
        names = ("hidden", "tp", "pp", "dp", "micro_batch", "seq_len")
        return tuple(getattr(row, name) for name in names)

    ran = {cells(row) for row in learned.runs.rows}
    found = [cells(row) for row in offered.rows]
    assert len(found) == len(set(found)) > PROPOSED
    assert not ran & set(found)
    for row in offered.rows:
        answer = predict(row)
        assert isinstance(answer, Prediction)
        assert answer.fits


def test_fully_sharded_software_is_offered_the_degrees_that_ran():
    rows = [replace(row, zero_stage=3) for row in rows_under()]
    rows = [row for row in rows if row.tp == row.pp == 1]
    found = candidates(learn(runs_of(rows)))
    assert found.rows
    assert {(row.tp, row.pp) for row in found.rows} == {(1, 1)}


def test_proposals_are_a_table_to_fill_in(learned, offered):
    """Filled in, they are runs."""
    proposals = propose(learned, offered)
    assert len(proposals) == PROPOSED
    spreads = [proposal.deviation for proposal in proposals]
    assert spreads == sorted(spreads, reverse=True)
    text = planned_csv([proposal.row for proposal in proposals])
    lines = text.splitlines()
    place = lines[0].split(",").index("iter_time_s")
    for number in range(1, len(lines)):
        cells = lines[number].split(",")
        assert cells[place] == ""
        cells[place] = "1000"
        lines[number] = ",".join(cells)
    rows = parse_rows("\n".join(lines).encode())
    found = runs_of(rows)
    assert not found.unused
    for row, proposal in zip(found.rows, proposals, strict=True):
        assert predicted_s(row) == pytest.approx(predicted_s(proposal.row))


def test_the_template_is_a_run_that_does_not_count(tmp_path):
    path = tmp_path / "runs.csv"
    header, cells = template_csv().splitlines()
    assert set(header.split(",")) == set(TEMPLATE)
    assert cells.endswith(",1.1")
    own = cells.removesuffix("1.1")
    path.write_text("\n".join((header, cells, f"{own}1.2", f"{own}1.3")))
    found = read_runs(path)
    assert [row.line for row in found.rows] == [3, 4]
    assert found.unused == ((2, "the example of the template, not a run of yours"),)


def test_the_example_of_the_page_runs(tmp_path, monkeypatch):
    """With two runs of the template, a little slower."""
    page = (ROOT / "docs" / "calibration.md").read_text()
    (example,) = re.findall(r"```python\n(.*?)```", page, re.DOTALL)
    header, cells = template_csv().splitlines()
    own = cells.removesuffix("1.1") + "1.2"
    (tmp_path / "runs.csv").write_text("\n".join((header, own, own)))
    monkeypatch.chdir(tmp_path)
    names: dict[str, Any] = {}
    exec(example, names)
    assert len(names["proposals"]) == PROPOSED


def test_a_document_of_runs_without_proposals(learned):
    document = document_without_proposals(learned)
    assert document["proposed"] == {
        "candidates": 0,
        "deviation_before": None,
        "deviation_after": None,
        "runs": [],
    }
    again = msgspec.convert(document["calibration"], CalibrationFile)
    assert again == learned.file
