"""``nest schedule`` as a user meets it."""

from __future__ import annotations

import io
import json
from pathlib import Path

import pytest

from tests.cli.conftest import Cli
from tests.rows import rows

LAYER = Path(__file__).parents[2] / "examples" / "codesign" / "layer.json"
CORES = "--cores tensor=8,vector=2"
SCHEDULE = f"schedule {LAYER} {CORES}"


@pytest.mark.parametrize("solver", ["dp", "cpsat", "milp"])
def test_a_layer_is_scheduled(cli: Cli, solver: str) -> None:
    """Forward one after the other on all cores: 200 + 1100 + 1500 + 1100.

    Backward the gradients of the weights run beside the norm: 1100 + 1800 +
    1100 + 2500, where all alone take 7100.
    """
    document = cli.document(f"{SCHEDULE} --solver {solver}")
    assert document["schema"] == "nest-schedule/1"
    lengths = {
        name: (one["makespan_ticks"], one["optimal"])
        for name, one in document["passes"].items()
    }
    assert lengths == {"forward": (3900, True), "backward": (6500, True)}
    assert document["makespan_ticks"] == 10400


def test_standard_input(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    data = io.TextIOWrapper(io.BytesIO(LAYER.read_bytes()))
    monkeypatch.setattr("sys.stdin", data)
    cli.succeeds(f"schedule - {CORES}")
    assert "10400 cycles" in cli.out


def layer(path: Path, *operators: dict[str, object]) -> Path:
    document = {"schema": "nest-layer/1", "passes": {"forward": operators}}
    path.write_text(json.dumps(document))
    return path


@pytest.mark.parametrize(("operators", "cores", "text"), rows("commands", "layers"))
def test_bad_layers(
    cli: Cli, operators: list[dict[str, object]], cores: str, text: str
) -> None:
    path = layer(Path("layer.json"), *operators)
    assert cli(f"schedule {path} --cores {cores}") == 2
    assert text in cli.err
    assert len(cli.err.splitlines()) == 1
