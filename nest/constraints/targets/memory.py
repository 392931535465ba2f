"""Bytes that training keeps per weight: gradients and optimizers.

Layers count 2 bytes per weight. On top come the gradient, the master copy of
the weight as far as the 2 bytes are not exact, and the moments.
"""

from __future__ import annotations

from nest.constraints.targets.records import Framework
from nest.errors import InvalidOptionError, UnknownNameError
from nest.ir.job import Optimizer

#: Bytes of the moments per weight: two in fp32 (Kingma and Ba 2015), two in bf16
#: (DeepSeek-AI 2024, arXiv 2412.19437, section 3.3.3), two in 8 bits (Dettmers et al.
#: 2022, arXiv 2110.02861; the constants of their blocks are left out), one in fp32 of
#: SGD with momentum and of Muon (Jordan et al. 2024). Matrices and vectors alike.
OPTIMIZERS = {"adam": 8, "adam-bf16": 4, "adam-8bit": 2, "sgd": 4, "muon": 4}

#: Bytes of a gradient.
GRADIENTS = {"bf16": 2, "fp32": 4}


def optimizer_of(
    target: Framework, gradients: str | None = None, optimizer: str | None = None
) -> Optimizer:
    """Return what a target keeps per weight.

    Its defaults count, without rules gradients in bf16 and Adam; ``gradients`` is
    another data type, ``fp32`` or ``bf16``, and ``optimizer`` one of
    :data:`OPTIMIZERS`.

    Raises ``UnknownNameError`` if there is no such optimizer or data type, and
    ``InvalidOptionError`` if the target cannot keep gradients like that.
    """
    rules = target.rules
    known_gradients = ("bf16",) if rules is None else rules.gradients.value
    gradients = gradients or known_gradients[0]
    optimizer = optimizer or "adam"
    for what, name, all_names in (
        ("gradients", gradients, GRADIENTS),
        ("optimizer", optimizer, OPTIMIZERS),
    ):
        if name not in all_names:
            raise UnknownNameError(what, name, all_names)
    if rules is not None and gradients not in known_gradients:
        raise InvalidOptionError(
            f"gradients: expected one of {', '.join(known_gradients)}, which "
            f"{target.title} can keep, got {gradients}; choose it or another target"
        )
    master = 4 if rules is None else rules.master_bytes.value
    return Optimizer(
        name=optimizer,
        weight_bytes=2,
        gradient_bytes=GRADIENTS[gradients],
        state_bytes=master + OPTIMIZERS[optimizer],
    )
