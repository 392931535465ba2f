"""What to cite: this project, and the papers of planners.

Title, authors, date and licence of the project are those of CITATION.cff,
which a test compares. Papers are those that the modules of ``baselines`` name.
"""

from __future__ import annotations

import textwrap
from collections.abc import Sequence
from typing import NamedTuple

from nest.errors import UnknownNameError
from nest.util.versions import nest_version

#: Of lines of BibTeX, which a terminal may show.
_COLUMNS = 79


class Work(NamedTuple):
    """Something to cite.

    Attributes
    ----------
    key, kind
        Of its BibTeX entry.
    authors
        Family name and given names, joined by a comma; a group has no comma.
        ``others`` stands for those that are left out.
    title, year
        As published.
    more
        Further fields of the entry, in their order.
    """

    key: str
    kind: str
    authors: tuple[str, ...]
    title: str
    year: int
    more: tuple[tuple[str, str], ...] = ()

    def text(self) -> str:
        """Return it as one line for people."""
        names = [
            "et al." if name == "others" else name.partition(",")[0]
            for name in self.authors
        ]
        who = ", ".join(names).replace(", et al.", " et al.")
        parts = [f"{who} ({self.year}). {self.title}"]
        parts += [
            f"{name} {value}" if name == "version" else value
            for name, value in self.more
            if name not in ("month", "eprinttype")
        ]
        return ". ".join(parts) + "."

    def bibtex(self) -> str:
        """Return it as an entry of BibTeX."""
        fields = [
            ("author", _joined(self.authors)),
            # Braces keep the capitals.
            ("title", f"{{{self.title}}}"),
            ("year", str(self.year)),
            *self.more,
        ]
        width = max(len(name) for name, _ in fields)
        indent = " " * (width + 6)
        lines = [
            line
            for name, text in fields
            for line in textwrap.wrap(
                f"  {name:<{width}} = {{{text}}},",
                _COLUMNS,
                subsequent_indent=indent,
                break_long_words=False,
                break_on_hyphens=False,
            )
        ]
        return "\n".join((f"@{self.kind}{{{self.key},", *lines, "}"))


def _joined(authors: Sequence[str]) -> str:
    return " and ".join(
        name if "," in name or name == "others" else f"{{{name}}}"
        for name in authors
    )


#: When the version in CITATION.cff was released.
RELEASED = "2026-11-21"


def project() -> Work:
    """Return this project, as it is installed."""
    return Work(
        "nest",
        "software",
        ("The nest developers",),
        "nest: a comparison framework for planners of large training runs",
        int(RELEASED.partition("-")[0]),
        (("version", nest_version()), ("license", "MIT")),
    )


#: The papers of re-implemented planners, by keyword.
PAPERS: dict[str, Work] = {
    "alpa": Work(
        "alpa",
        "inproceedings",
        ("Zheng, Lianmin", "Li, Zhuohan", "Zhang, Hao", "others"),
        "Alpa: Automating Inter- and Intra-Operator Parallelism for "
        "Distributed Deep Learning",
        2022,
        (("booktitle", "OSDI"), ("note", "arXiv 2201.12023")),
    ),
    "galvatron": Work(
        "galvatron",
        "article",
        ("Miao, Xupeng", "Wang, Yujie", "Jiang, Youhe", "others"),
        "Galvatron: Efficient Transformer Training over Multiple GPUs Using "
        "Automatic Parallelism",
        2022,
        (("journal", "PVLDB"), ("note", "16(3)")),
    ),
    "phaze": Work(
        "phaze",
        "inproceedings",
        (
            "Wang, Irene",
            "Tarnawski, Jakub",
            "Phanishayee, Amar",
            "Mahajan, Divya",
        ),
        "Integrated Hardware Architecture and Device Placement Search",
        2024,
        (("booktitle", "ICML"),),
    ),
    "piper": Work(
        "piper",
        "inproceedings",
        ("Tarnawski, Jakub", "Narayanan, Deepak", "Phanishayee, Amar"),
        "Piper: Multidimensional Planner for DNN Parallelization",
        2021,
        (("booktitle", "NeurIPS"),),
    ),
    "megatron": Work(
        "megatron",
        "inproceedings",
        ("Narayanan, Deepak", "Shoeybi, Mohammad", "others"),
        "Efficient Large-Scale Language Model Training on GPU Clusters Using "
        "Megatron-LM",
        2021,
        (("booktitle", "SC"), ("note", "arXiv 2104.04473")),
    ),
    "mcmc": Work(
        "flexflow",
        "inproceedings",
        ("Jia, Zhihao", "Zaharia, Matei", "Aiken, Alex"),
        "Beyond Data and Model Parallelism for Deep Neural Networks",
        2019,
        (("booktitle", "MLSys"), ("note", "arXiv 1807.05358")),
    ),
    "uniap": Work(
        "uniap",
        "inproceedings",
        ("Lin, Hao", "Wu, Ke", "Li, Jie", "Li, Jun", "Li, Wu-Jun"),
        "UniAP: Unifying Inter- and Intra-Layer Automatic Parallelism by "
        "Mixed Integer Quadratic Programming",
        2025,
        (("booktitle", "CVPR"), ("note", "arXiv 2307.16375")),
    ),
    "ft": Work(
        "tensoropt",
        "article",
        ("Cai, Zhenkun", "Yan, Xiao", "Ma, Kaihao", "others"),
        "TensorOpt: Exploring the Tradeoffs in Distributed DNN Training with "
        "Auto-Parallelism",
        2022,
        (("journal", "IEEE TPDS"), ("note", "33(8), arXiv 2004.10856")),
    ),
    "aceso": Work(
        "aceso",
        "inproceedings",
        ("Liu, Guodong", "others"),
        "Aceso: Efficient Parallel DNN Training through Iterative Bottleneck "
        "Alleviation",
        2024,
        (("booktitle", "EuroSys"),),
    ),
}


def works(solvers: Sequence[str] = ()) -> list[Work]:
    """Return the project, and the papers of solvers.

    Raises
    ------
    UnknownNameError
        If a solver has no paper here.
    """
    for name in solvers:
        if name not in PAPERS:
            raise UnknownNameError("planner with a paper", name, PAPERS)
    return [project(), *(PAPERS[name] for name in dict.fromkeys(solvers))]
