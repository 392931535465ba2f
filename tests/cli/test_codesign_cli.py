"""``nest codesign``: options, outputs, refusals, and what stops it."""

from __future__ import annotations

import csv
import io
import json
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

import nest
from nest.accelerators import answers as answers_module
from nest.accelerators.document import Codesign, answers_document
from nest.accelerators.records import Counts, ExtraAnalyses, QuestionProgress
from nest.cli.codesigning import PointLine, wave_text
from nest.errors import InvalidOptionError, SolverError
from nest.models.zoo import architecture
from nest.present.codesign import doubts
from nest.util.interrupts import Interrupted
from tests import codesigns
from tests.children import wait_until
from tests.cli.conftest import Cli
from tests.random_spaces import known, random_spec

#: A config.json of GPT-2, as far as it shapes anything.
GPT2 = {
    "model_type": "gpt2",
    "n_embd": 768,
    "n_head": 12,
    "n_layer": 12,
    "n_positions": 1024,
    "vocab_size": 50257,
}


@pytest.fixture(autouse=True)
def _specification(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("spec.yaml").write_text(codesigns.SPEC)


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """Answer by hand, and note what was asked."""
    noted: dict[str, Any] = {}

    def answer(spec: Any, wanted: Any, **settings: Any) -> Any:
        noted.update(settings, spec=spec, wanted=wanted)
        return noted.get("answers") or codesigns.answers(spec=spec)

    monkeypatch.setattr(answers_module, "answer", answer, raising=False)
    return noted


def test_it_says_what_was_read(cli: Cli) -> None:
    cli.succeeds("codesign spec.yaml --describe")
    for text in ("16 points listed", "5 points cut by area-most", "11 points"):
        assert text in cli.out
    assert "not calibrated" in cli.out
    document = cli.document("codesign spec.yaml --describe")
    assert (document["raw"], document["kept"]) == (16, 11)
    assert document["cut"] == {"area-most": 5}
    assert document["smallest"]["index"] == 0
    assert document["base"]["index"] == 0


def test_all_options_arrive(cli: Cli, asked: Any) -> None:
    """And a model that fits no point is said."""
    words = "--frontier --sensitivity --contributions --phaze-order"
    assert (
        cli(
            f"codesign spec.yaml --model bert-large --model gpt2 {words} "
            "--samples 2 -o run --resume"
        )
        == 2
    )
    assert asked["spec"].models == ("bert-large", "gpt2")
    assert asked["wanted"] == (True, True, True, True, (0, 1))
    assert (asked["folder"], asked["resume"]) == ("run", True)
    assert (asked["jobs"], asked["dask"]) == (1, None)
    assert "nest: bert-large: no point of the space fits a plan" in cli.err
    assert "relative" in cli.out


def test_documents_for_programs(cli: Cli, asked: Any) -> None:
    assert cli("codesign spec.yaml --json - --csv a.csv") == 2
    document = json.loads(cli.out)
    assert document["schema"] == "nest-codesign-answers/1"
    assert "not calibrated" in document["costs"]
    assert document["unfinished"] == ""
    (first, none, both) = document["best"]
    assert first["found"]["on"][0]["tokens_per_s"] == 16 * 128 / 0.5
    assert none["found"] is None
    assert both["found"]["point"]["area_mm2"] == pytest.approx(55.07, abs=0.01)
    assert sum(both["counts"].values()) >= 11
    with Path("a.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert {row["kind"] for row in rows} == {
        *("base", "best", "frontier", "sensitivity", "baseline")
    }
    (row,) = [x for x in rows if (x["kind"], x["about"]) == ("best", "gpt2")]
    assert float(row["tokens_per_s"]) == 4096
    assert row["tensor_cores"] == "4"


def test_the_change_is_beside_the_best_of_all() -> None:
    more, less = codesigns.document()["sensitivity"]
    assert more["change"] == pytest.approx(3 / (2 * 2**0.5) - 1)
    assert (more["listed"], less["listed"]) == (False, True)
    assert more["text"] == "SRAM 8 MiB"


def test_ctrl_c_writes_what_is_known(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    def stopped(spec: Any, wanted: Any, **settings: Any) -> Any:
        raise Interrupted(codesigns.answers(frontier=()))

    monkeypatch.setattr(answers_module, "answer", stopped, raising=False)
    assert cli("codesign spec.yaml -o run --json a.json") == 130
    assert "The search was stopped" in cli.out
    assert cli.err.splitlines()[-1] == "nest: interrupted"
    document = json.loads(Path("a.json").read_text())
    assert document["unfinished"].endswith("Go on with --resume.")


def test_questions_that_were_not_begun() -> None:
    """Of two models, the second and both are left."""
    whole = codesigns.answers()
    one = whole._replace(best=whole.best[:1])
    found = answers_document(one, "Stopped.")["unfinished"]
    left = "bert-large; gpt2, bert-large"
    assert found == f"Stopped. Nothing was looked for yet for: {left}."
    assert answers_document(whole, "Stopped.")["unfinished"] == "Stopped."


def test_what_is_known_when_it_is_stopped(monkeypatch: pytest.MonkeyPatch) -> None:
    """The first model is, the second one is not."""
    study = answers_module._Study
    best_of = study._best

    def best(self: Any, models: tuple[int, ...], num_left: int) -> Any:
        if models == (1,):
            raise KeyboardInterrupt
        return best_of(self, models, num_left)

    monkeypatch.setattr(study, "_best", best)
    spec, models = random_spec(1, 2)
    with known(models), pytest.raises(Interrupted) as caught:
        answers_module.answer(spec)
    (one,) = caught.value.found.best
    assert one.models == (spec.models[0],)
    assert caught.value.found.solved > 0


def test_what_was_solved_before_changes_no_count(tmp_path: Path) -> None:
    """A run that finds more than it asks for goes the way of a new one."""
    spec, models = random_spec(5, 12)
    with known(models):
        new = answers_module.answer(spec)
        more = ExtraAnalyses(frontier=True, phaze_order=True)
        folder = str(tmp_path / "run")
        answers_module.answer(spec, more, folder=folder)
        found = answers_module.answer(spec, folder=folder, resume=True)
    assert found.best == new.best
    assert (found.solved, found.stored > new.solved) == (0, True)


def test_without_time_for_the_base_nothing_is_proven() -> None:
    spec, models = random_spec(1, 4)
    with (
        known(models),
        pytest.raises(SolverError, match="so nothing is proven; allow more"),
    ):
        answers_module.answer(spec, time_limit_s=0.0)


def test_out_of_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """After the base all is open."""
    spec, models = random_spec(1, 4)
    study = answers_module._Study
    bound_all = study._bound_all

    def bounded_at_the_end(self: Any) -> None:
        bound_all(self)
        self.deadline.expire()

    with known(models):
        with monkeypatch.context() as patch:
            patch.setattr(study, "_bound_all", bounded_at_the_end)
            found = answers_module.answer(spec, ExtraAnalyses(frontier=True))
        whole = answers_module.answer(spec)
    assert found.out_of_time
    assert not found.frontier
    size = len(spec.space.points)
    for stopped in found.best:
        assert (stopped.counts.open, stopped.proven) == (size, False)
        # A point with as much of everything as any is all that is known.
        assert stopped.found is None
        assert stopped.most_relative is not None
    for stopped, best in zip(found.best, whole.best, strict=True):
        assert best.found is not None
        assert stopped.most_relative >= best.found.relative
    assert not whole.out_of_time
    last = whole.best[-1]
    assert last.found is not None
    assert last.most_relative == last.found.relative


def test_a_doubtful_best_point_makes_regrets_doubtful(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Half the least cost may be had: twice the throughput of the best."""
    find = answers_module.best_points

    def doubt(*asked: Any) -> Any:
        known = find(*asked)
        counts = known.counts + Counter(open=1)
        return known._replace(counts=counts, bound=known.bound // 2)

    monkeypatch.setattr(answers_module, "best_points", doubt)
    spec, models = random_spec(1, 2)
    one = replace(spec, models=spec.models[:1])
    with known(models):
        found = answers_module.answer(one)
    (best,), (base,) = found.best, found.baselines
    assert best.found is not None
    assert found.out_of_time
    assert best.most_relative == pytest.approx(2 * best.found.relative)
    assert base.regret == best.found.relative / found.base.relative - 1
    assert base.most_regret == pytest.approx(2 * base.regret + 1)


def test_how_far_it_is() -> None:
    """A line with what is open, the best point, and a bound on all."""
    counts = Counts(1100, 0, 0, 0, 3, 100)
    assert wave_text(QuestionProgress("gpt2", counts, 1.25, 1.5), 1203) == (
        "gpt2: 100 of 1,203 points open, 3 solved; best 1.25x the base, none above 1.5x"
    )
    assert wave_text(QuestionProgress("the frontier", counts), 1203) == (
        "the frontier: 100 of 1,203 points open, 3 solved"
    )


def test_a_long_wave_is_not_silent(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(PointLine, "FIRST_S", 0.001)
    monkeypatch.setattr(PointLine, "PIPE_S", 0.001)
    file = io.StringIO()
    with PointLine(7, file) as line:
        wait_until(lambda: file.getvalue().count("the first points") > 1)
        line(QuestionProgress("gpt2", Counts(0, 0, 0, 0, 0, 7)))
        wait_until(lambda: file.getvalue().count("7 of 7 points open") > 1)


def test_a_time_limit(cli: Cli, asked: Any) -> None:
    """What is not known in time is said, and how far the best one may be."""
    asked["answers"] = codesigns.stopped()
    assert cli("codesign spec.yaml --time-limit 20 --json a.json --html a.html") == 1
    assert 0 <= asked["time_limit_s"] < 20
    assert "Time ran out: what is here is what was known by then." in cli.out
    said = " ".join(cli.out.split())
    for text in (
        "gpt2: not proven, no point has more than 2.5×, 25.00 % above the "
        "best one known; 2 points open",
        "bert-large: no point is known; 13 points open",
        "182.84 to 200.00 %",
        ">= 0.00 %",
        "open nothing: the search was stopped 2 13 1",
    ):
        assert text in said
    assert cli.err.splitlines()[-1] == (
        "nest: bert-large: no point is known in time; raise --time-limit"
    )
    document = json.loads(Path("a.json").read_text())
    assert document["unfinished"].startswith("Time ran out")
    first, _, both = document["best"]
    assert (first["proven"], first["most_relative"]) == (False, 2.5)
    assert both["counts"]["open"] == 1
    page = Path("a.html").read_text()
    assert "The best accelerator known for all 2 together is" in page
    assert "none of the 11 points within the limits has more than 3×." in page


def test_what_is_open_though_none_has_more() -> None:
    """Which of equal points is the smallest, and first, is not known yet."""
    best = {"models": ["gpt2"], "proven": False, "counts": {"open": 1}}
    best |= {"found": {"relative": 1.5}, "most_relative": 1.5}
    assert doubts({"best": [best]}) == [
        "gpt2: not proven, no point has more than 1.5×, 0.00 % above the best "
        "one known: others may have as much, and be smaller; 1 point open"
    ]


def test_a_picture(cli: Cli, asked: Any) -> None:
    pytest.importorskip("matplotlib")
    asked["answers"] = codesigns.stopped()
    assert cli("codesign spec.yaml --plot a.svg") == 1
    text = Path("a.svg").read_text()
    for label in ("area of the die", "no point has more", "not calibrated"):
        assert label in text
    axes = Codesign(codesigns.answers()).plot()
    labels = [text.get_text() for text in axes.get_legend().get_texts()]
    assert labels == ["frontier", "other searches", "base", "best"]
    # The best point of two has the most throughput from its area on.
    (line,) = axes.get_lines()
    assert line.get_ydata()[-1] == pytest.approx(2 * 2**0.5)


def test_a_model_of_a_file(cli: Cli, asked: Any) -> None:
    """Beside the specification, or where --model says."""
    Path("models").mkdir()
    Path("models/own.json").write_text(json.dumps(GPT2))
    text = codesigns.SPEC.replace("[gpt2, bert-large]", "[own.json]")
    Path("models/spec.yaml").write_text(text)
    assert cli("codesign models/spec.yaml") == 2
    assert asked["spec"].models == ("models/own.json",)
    assert cli("codesign spec.yaml --model models/own.json") == 2
    assert asked["spec"].models == ("models/own.json",)
    own = answers_module.setting_of(asked["spec"], "models/own.json")
    assert own.model.towers == architecture("gpt2").towers


def test_the_same_in_python(asked: Any) -> None:
    found = nest.codesign(
        "spec.yaml", model="gpt2", frontier=True, samples=2, output="run"
    )
    assert asked["spec"].models == ("gpt2",)
    assert asked["wanted"] == (True, False, False, False, (0, 1))
    assert (asked["folder"], asked["jobs"]) == ("run", 1)
    assert repr(found) == (
        "<Codesign gpt2, bert-large: point 10 of 11, 2.828 times ours, 4 x "
        "64x64 tensor, 2 x 64 vector, 2 MiB SRAM, 16 GiB HBM>"
    )
    rows = found.to_rows()
    assert len(found.to_pandas()) == len(rows) == 2 + 1 + 2 + 4 + 4 + 4
    assert "lanes" in rows[0]
    none = codesigns.answers(best=codesigns.answers().best[1:2])
    assert repr(Codesign(none)) == "<Codesign bert-large: no point fits>"
    with pytest.raises(InvalidOptionError, match="jobs: expected an int"):
        nest.codesign("spec.yaml", jobs=0)
    assert nest.codesign(codesigns.spec_of(), "gpt2").answers.best


def test_published_chips_need_no_specification(cli: Cli) -> None:
    cli.succeeds("codesign --published")
    assert "TPU v5p" in cli.out
    assert "GA100, by the constants of 7nm:" in cli.out
