"""The runs that the package brings along, from the shared measurements.

Writes ``nest/validation/data/measured.csv``: of every measured run whose source may be
passed on, the columns that predictions ask for and the licence of the source; of
vTrain's runs on one node two thirds, to keep it small. Of notes only the words that the
reader looks for are kept, as columns where there are any. The table of the sources is
for docs/results/bundled-runs.md. A source that is not listed here stops the script.

    python bench/measured_facts.py [FILE]
"""

from __future__ import annotations

import csv
import re
import sys
from collections import Counter
from pathlib import Path
from typing import NamedTuple

from bench.result_files import fill, page_path, table
from nest.validation.flops import flop_count_of
from nest.validation.negation import affirmed
from nest.validation.predict import predict
from nest.validation.reading import read_rows
from nest.validation.rows import COLUMNS, Row
from nest.validation.usable import impossible

ROOT = Path(__file__).resolve().parent.parent
SHARED = ROOT.parent / "shared" / "data" / "measured" / "measurements.csv"
FACTS = ROOT / "nest" / "validation" / "data" / "measured.csv"


class Origin(NamedTuple):
    """Where rows come from, and what allows to pass their numbers on.

    Attributes
    ----------
    source
        Pattern of the whole column ``source``.
    licence
        Of the place; ``cited`` for numbers out of papers and reports, empty
        if it does not let them be passed on under other terms.
    notice
        Who published them where.
    """

    source: str
    licence: str
    notice: str


CITED = "cited"
APACHE = "Apache-2.0"

ORIGINS = (
    Origin(
        r"vTrain \(.*",
        "MIT-style",
        "Bang et al., vTrain, MICRO 2024, arXiv 2312.12391; "
        "VIA-Research/vTrain @f8dda8473a, data, © KAIST",
    ),
    Origin(
        r"(BLOOM|BigScience) .*",
        APACHE,
        "BigScience Workshop; bigscience-workshop/bigscience @9e64edec2a, "
        "chronicles and experiments",
    ),
    Origin(r"NVIDIA DGX Cloud .*", "MIT", "NVIDIA; NVIDIA/dgxc-benchmarking, recipes"),
    Origin(
        r"(NVIDIA )?Megatron-Bridge .*",
        APACHE,
        "NVIDIA; NVIDIA-NeMo/Megatron-Bridge @067f987df0, performance summary "
        "and verification cards",
    ),
    Origin(r"NVIDIA NeMo .*", APACHE, "NVIDIA; NVIDIA/NeMo, performance summaries"),
    Origin(
        r"Megatron-LM CI .*",
        "BSD-3-Clause",
        "NVIDIA; NVIDIA/Megatron-LM @d98e8a64dd, tests/functional_tests",
    ),
    Origin(
        r"Megatron-LM README .*",
        "BSD-3-Clause",
        "NVIDIA; NVIDIA/Megatron-LM, README of 2020 and of 2024",
    ),
    Origin(
        r"Megatron-LM SC21 .*",
        CITED,
        "Narayanan et al. 2021, arXiv 2104.04473, tables 1 and 2, section 5.8",
    ),
    Origin(
        r"Korthikanti .*", CITED, "Korthikanti et al. 2022, arXiv 2205.05198, table 5"
    ),
    Origin(
        r"MosaicML llm-foundry .*",
        APACHE,
        "MosaicML; mosaicml/llm-foundry @8c8dd48f72, scripts/train/benchmarking",
    ),
    Origin(
        r"MLPerf Training .*",
        APACHE,
        "the submitters named; logs of mlcommons/training_results. Step times "
        "derived here: not verified by MLCommons, no MLPerf results. The "
        "MLPerf name is a trademark of MLCommons",
    ),
    Origin(
        r"MaxText .*",
        APACHE,
        "Google; AI-Hypercomputer/maxtext @e591f30cbb, tables beside its "
        "configurations",
    ),
    Origin(
        r"Google tpu-recipes .*",
        APACHE,
        "Google; AI-Hypercomputer/tpu-recipes @c8cfe2f689",
    ),
    Origin(r"InternEvo .*", APACHE, "InternLM; InternLM/InternEvo @c628a8c874, doc"),
    Origin(
        r"torchtitan .*",
        "BSD-3-Clause",
        "Meta; pytorch/torchtitan @b5bcd76c66 and before, benchmarks",
    ),
    Origin(
        r"IBM/PyTorch fms-fsdp .*",
        APACHE,
        "IBM; foundation-model-stack/fms-fsdp, README",
    ),
    Origin(r"ColossalAI .*", APACHE, "HPC-AI Tech; hpcaitech/ColossalAI, README"),
    Origin(
        r"Pythia .*",
        CITED,
        "Biderman et al. 2023, arXiv 2304.01373, table 5; configurations of "
        "EleutherAI/pythia",
    ),
    Origin(r"Zero Bubble .*", CITED, "Qi et al. 2024, arXiv 2401.10241, table 4"),
    Origin(
        r"Vocabulary Parallelism .*",
        CITED,
        "Yeung et al. 2024, arXiv 2411.05288, table 5",
    ),
    Origin(
        r"MegaScale .*",
        CITED,
        "Jiang et al. 2024, arXiv 2402.15627, tables 2 and 3, figure 9",
    ),
    Origin(
        r"Llama 3 herd .*", CITED, "Grattafiori et al. 2024, arXiv 2407.21783, table 4"
    ),
    Origin(
        r"Nemotron-4 .*",
        CITED,
        "Parmar et al. 2024, arXiv 2402.16819; NVIDIA 2024, arXiv 2406.11704, "
        "table 2 each",
    ),
    Origin(r"MT-NLG .*", CITED, "Smith et al. 2022, arXiv 2201.11990, section 2.4"),
    Origin(r"BloombergGPT .*", CITED, "Wu et al. 2023, arXiv 2303.17564, table 4"),
    Origin(r"OPT-175B .*", CITED, "Zhang et al. 2022, arXiv 2205.01068"),
    Origin(r"PaLM paper .*", CITED, "Chowdhery et al. 2022, arXiv 2204.02311"),
    # Documentation under CC BY-SA 4.0.
    Origin(r"AWS Neuron .*", "", ""),
    # CC BY-NC-SA 4.0, CC BY-SA 4.0.
    Origin(r".*(Hagemann|Aleph).*|stas00.*", "", ""),
)

#: Words of notes that the reader looks for and no column says.
WORDS = (
    r"\bLoRA\b",
    r"\btask SFT\b",
    r"\bfine-tuning \(SFT\)",
    r"\bRMS\w*",
    r"grouped[-_ ]?gemm",
    r"torch\.compile\b",
    r"\b(?:Deep|Hybrid)EP\b",
)

#: Asides that nothing asks for, by column; numbers of links are kept.
ASIDES = {
    "interconnect": r" \((?!\d|HDR)[^()]*?"
    r"(NVLink \d+ inter-gpu connects)?\W*\)",
    "attention_impl": r" \([^()]*()\)",
    "shard_mode": r" \(NeMo default[^()]*()\)",
}

#: Words that columns say.
ETP = (
    r"expert[- ]tensor[- ]parallel(?:[- ]size)?\W{1,3}(\d+)|\bETP (\d+)"
    r"|[_\d]etp(\d+)"
)
CUDA_GRAPHS = r"(?<!scoped_)cuda ?graph"

#: What a software reaches, and how it counts: asked for without a time.
FLOPS = ("tflops_per_gpu", "mfu", "tflops_kind")

#: What groups of configurations have in common.
GROUP = ("layers", "hidden", "seq_len", "num_devices", "global_batch")

#: Columns that say all that others do.
NEEDLESS = {"precision_class": "precision", "micro_batch": "grad_accum"}


def origin_of(source: str) -> Origin:
    """Return where a row's source comes from."""
    for origin in ORIGINS:
        if re.fullmatch(origin.source, source):
            return origin
    raise SystemExit(f"{source}: no licence known; add it to ORIGINS")


def fact_of(cells: dict[str, str], licence: str) -> dict[str, str]:
    """Return the cells of a row that predictions ask for."""
    notes = cells.get("notes", "")
    fact = {name: cells.get(name, "") for name in COLUMNS}
    etp = re.search(ETP, notes)
    if etp and not fact["etp"]:
        fact["etp"] = next(filter(None, etp.groups()))
    if re.search(CUDA_GRAPHS, notes, re.IGNORECASE):
        fact["cuda_graphs"] = fact["cuda_graphs"] or "1"
    words = (re.search(word, affirmed(notes), re.IGNORECASE) for word in WORDS)
    fact["notes"] = "; ".join(found.group() for found in words if found)
    figures = ("iter_time_s", "tokens_per_s_per_gpu", "samples_per_s")
    for name, aside in ASIDES.items():
        fact[name] = re.sub(
            aside, lambda found: f" {found[1]}" if found[1] else "", fact[name]
        )
    stated = [name for name in figures if fact[name]]
    for name in stated[1:]:
        fact[name] = ""
    if stated or not counted(fact["tflops_kind"]):
        fact |= dict.fromkeys(FLOPS, "")
    if fact["status"].lower() == "ok":
        fact["status"] = ""
    for name, needless in NEEDLESS.items():
        if fact[name]:
            fact[needless] = ""
    return fact | {"licence": licence}


def counted(kind: str) -> bool:
    """Return whether it is known how FLOPs of that kind are counted."""
    return flop_count_of(Row(tflops_kind=kind)) is not None


def thinned(rows: list[dict[str, str]]) -> list[dict[str, str]]:
    """Leave out every third group of vTrain's runs on a single node.

    They are nearly half of all rows. A group has one model, number of
    devices and batch: groups stay whole, so that they can be ranked.
    """
    groups: dict[tuple[str, ...], int] = {}
    fewer = []
    for cells in rows:
        if cells["source"].startswith("vTrain") and (
            float(cells["num_devices"]) <= float(cells["devices_per_node"])
        ):
            key = tuple(cells[name] for name in GROUP)
            if groups.setdefault(key, len(groups)) % 3 == 2:
                continue
        fewer.append(cells)
    return fewer


def facts_of(rows: list[dict[str, str]]) -> list[dict[str, str]]:
    """Return the facts of all runs that may be passed on, in their order."""
    facts = []
    for cells in thinned(rows):
        licence = origin_of(cells["source"]).licence
        if licence and cells["kind"] == "measured":
            facts.append(fact_of(cells, licence))
    columns = [
        name
        for name in (*COLUMNS, "licence")
        if name != "kind" and any(fact[name] for fact in facts)
    ]
    return [{name: fact[name] for name in columns} for fact in facts]


def check(shared: Path, facts: Path) -> None:
    """Raise unless every fact is predicted as the row it comes from."""

    def answers(row: Row) -> object:
        return predict(row), impossible(row)

    by_id = {row.row_id: row for row in read_rows(shared)}
    for row in read_rows(facts):
        if answers(row) != answers(by_id[row.row_id]):
            raise SystemExit(f"{row.row_id}: predicted otherwise than before")


def notices(facts: list[dict[str, str]]) -> str:
    """Return the table of docs/results/bundled-runs.md."""
    counts = Counter(origin_of(fact["source"]) for fact in facts)
    rows = (
        (count, origin.notice, origin.licence) for origin, count in counts.most_common()
    )
    return table("rows | source | license", rows, "rll")


def main() -> None:
    shared = Path(sys.argv[1]) if len(sys.argv) > 1 else SHARED
    with shared.open(newline="", encoding="utf-8") as file:
        facts = facts_of(list(csv.DictReader(file)))
    with FACTS.open("w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, facts[0], lineterminator="\n")
        writer.writeheader()
        writer.writerows(facts)
    check(shared, FACTS)
    fill(page_path("bundled-runs"), "facts", notices(facts))


if __name__ == "__main__":
    main()
