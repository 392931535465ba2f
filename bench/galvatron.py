"""Repeat Galvatron's recorded searches on its own profiles.

Compares predicted step time, plan and memory with what its search engine answered
(reference/galvatron-runs.md; the profiles are in the shared data), and times each
search. Writes ``bench/results/galvatron.json`` and prints a table.

    python bench/galvatron.py
"""

from __future__ import annotations

import time
from typing import Any

from galvatron_profiles import Search, read_hardware, read_model, search_profiles
from result_files import ROOT, write_rows

DATA = ROOT.parent / "shared" / "data" / "profiles" / "galvatron"

MODEL = {"num_layers": 32, "hidden_size": 4096, "sequence_length": 2048}


def search(memory_gib: int, **fields: Any) -> Search:
    """Return a search of 64 samples, but for other fields."""
    return Search(memory_gib, **{"batch_sizes": (64,), **fields})


#: Search, recorded time in s, MB per stage, and wall-clock time in s.
RECORDED: dict[str, tuple[Search, float, tuple[int, ...], float]] = {
    "36 GB, 16 samples, 1 chunk": (
        *(search(36, batch_sizes=(16,), chunks=(1,)), 1.0860),
        *((36757,), 33.0),
    ),
    "36 GB, 64 samples": (search(36), 4.1896, (36815,), 404.0),
    "36 GB, 64 samples, coarse": (
        *(search(36, fine_grained=False), 4.2006, (36746,), 7.8),
    ),
    "36 GB, 64 samples, GPipe": (*(search(36, gpipe=True), 4.1896, (36815,), 239.0),),
    "24 GB, 64 samples": (*(search(24), 5.0570, (24557, 23827, 24084, 24148), 220.0),),
    "16 GB, 64 samples": (search(16), 5.8733, (15863, 16186), 103.0),
    "80 GB, 64 samples": (search(80), 3.5188, (81807,), 703.0),
}


def main() -> None:
    model = read_model(DATA / "configs", "llama2-7b", **MODEL)
    hardware = read_hardware(DATA / "hardware_configs", 1, 8)
    rows = []
    print(
        f"{'search':26} {'recorded':>8} {'ours':>8} {'error':>7} {'MB':>4} "
        f"{'wall s':>6} {'cpu s':>6}  plan"
    )
    for name, recorded in RECORDED.items():
        searched, recorded_s, recorded_mb, recorded_wall_s = recorded
        start, cpu_start = time.monotonic(), time.process_time()
        answer = search_profiles(model, hardware, searched)
        wall_s = time.monotonic() - start
        cpu_s = time.process_time() - cpu_start
        assert answer is not None
        row = {
            "search": name,
            "recorded_s": recorded_s,
            "recorded_mb": recorded_mb,
            "recorded_wall_s": recorded_wall_s,
            "predicted_s": answer.time_s,
            "relative_error": answer.time_s / recorded_s - 1,
            "memory_mb": answer.memory_mb,
            "plan": answer.summary(),
            "chunks": answer.task.chunks,
            "mode": answer.task.mode,
            "embedding": str(answer.embedding),
            "wall_s": round(wall_s, 2),
            "cpu_s": round(cpu_s, 2),
        }
        rows.append(row)
        same = "same" if answer.memory_mb == recorded_mb else "DIFF"
        print(
            f"{name:26} {recorded_s:8.4f} {answer.time_s:8.4f} "
            f"{row['relative_error']:7.0e} {same:>4} {wall_s:6.1f} "
            f"{cpu_s:6.1f}  {answer.summary()}",
            flush=True,
        )
    write_rows("galvatron", rows)


if __name__ == "__main__":
    main()
