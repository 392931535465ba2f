"""Formulas of pages as MathML, which browsers typeset without a script.

Pages write them in TeX, as GitHub shows them: ``$…$`` in a line, and blocks
``math``. A formula that docutils cannot translate fails the build.
"""

from __future__ import annotations

from typing import Any

from docutils import nodes
from docutils.utils.math import latex2mathml


def mathml(tex: str, block: bool) -> str:
    """Return a formula in TeX as an element of MathML."""
    return str(latex2mathml.tex2mathml(tex, as_block=block))


def _inline(translator: Any, node: nodes.math) -> None:
    translator.body.append(mathml(node.astext(), False))
    raise nodes.SkipNode


def _block(translator: Any, node: nodes.math_block) -> None:
    formula = mathml(node.astext(), True)
    translator.body.append(f'<div class="formula" tabindex="0">{formula}</div>')
    raise nodes.SkipNode


def setup(app: Any) -> dict[str, bool]:
    """Add the renderer ``mathml``."""
    app.add_html_math_renderer("mathml", (_inline, None), (_block, None))
    return {"parallel_read_safe": True, "parallel_write_safe": True}
