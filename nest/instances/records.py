"""What the library keeps of an instance, and what is known about it."""

from __future__ import annotations

from typing import Any, Literal

from nest.ir.base import Count, Distinct, FileStruct, Size, Struct
from nest.ir.plan import Plan
from nest.util.stored import read_records


class Class(Struct, frozen=True, kw_only=True):
    """A class of instances: its name, what it is about, and what it says.

    ``bench/instance_classes.py`` computes which of them a problem is in; those about
    memory need a proof, see :attr:`BestKnown.memory_class`.
    """

    name: str
    dimension: str
    meaning: str


#: All classes, in the order of lists.
CLASSES = read_records("nest.instances", "classes", Class)

#: Whether the optimum (or that no plan fits) is proven.
State = Literal["closed", "open"]


class Instance(Struct, frozen=True, kw_only=True):
    """One stored problem."""

    #: Of the problem and its file; what it is, in one line.
    name: str
    title: str
    #: The instance is the problem with this hash and no other; the hash of the same
    #: without a memory limit, see :func:`nest.instances.store.unlimited`.
    problem_hash: str
    unlimited_hash: str
    #: What is true of the problem, see :data:`CLASSES`.
    classes: Distinct[str]
    #: Of its cluster and its graph; the size of its time unit.
    num_devices: Count
    num_layers: Count
    quantum_ps: Count = 1000
    #: Where its figures come from.
    source: str
    #: What made it.
    recipe: dict[str, Any]


class Index(FileStruct, frozen=True, kw_only=True, tag="nest-instances/1"):
    """All instances, and what made them."""

    #: The script, and the version of the package that it used.
    generator: str
    version: str
    #: Of the fitted parameters that times of operators and links rest on; of the code
    #: and the data that make a problem of a recipe.
    calibration_sha256: str
    sources_sha256: str
    #: By name.
    instances: tuple[Instance, ...]


class Proof(Struct, frozen=True, kw_only=True):
    """What an exact solver proved, and by which method.

    No plan is faster than ``bound_quanta``; ``None`` if no plan fits at all.
    """

    solver: str
    version: str
    method: str
    bound_quanta: Size | None = None


class Unlimited(Struct, frozen=True, kw_only=True):
    """What is known if memory is no limit: whether it is what binds."""

    #: A plan that does not fit the memory and is faster than all that do (any plan
    #: where none does), and its step time.
    plan: Plan | None = None
    value_quanta: Size | None = None
    #: That no plan is faster than the best known, fitting or not.
    proof: Proof | None = None


class BestKnown(Struct, frozen=True, kw_only=True):
    """The best known plan of an instance and the best proven bound."""

    #: What it is known about.
    problem_hash: str
    #: Step time of the best known plan, the plan itself, and the solver with its
    #: version, or whatever the plan says of itself.
    value_quanta: Size | None = None
    plan: Plan | None = None
    found_by: str | None = None
    #: The best proof of every exact solver that has one.
    proofs: tuple[Proof, ...] = ()
    #: What is known without a memory limit, ``None`` if nothing is.
    unlimited: Unlimited | None = None

    @property
    def bound_quanta(self) -> int | None:
        """What no plan is faster than, as far as it is proven.

        ``None`` if nothing is proven, and if no plan fits: none has a time.
        """
        if self.infeasible:
            return None
        return max(
            (p.bound_quanta for p in self.proofs if p.bound_quanta is not None),
            default=None,
        )

    @property
    def infeasible(self) -> bool:
        """Whether it is proven that no plan fits."""
        return any(proof.bound_quanta is None for proof in self.proofs)

    @property
    def status(self) -> State:
        """``closed`` if nothing is left to prove."""
        if self.infeasible:
            return "closed"
        has_plan = self.value_quanta is not None
        return (
            "closed" if has_plan and self.bound_quanta == self.value_quanta else "open"
        )

    @property
    def memory_class(self) -> str | None:
        """``loose``, ``tight`` or ``infeasible``; ``None`` if unsettled.

        Tight is where some plan that does not fit is proven to be faster
        than all that do, loose where none is.
        """
        if self.infeasible:
            return "infeasible"
        beyond = self.unlimited
        if beyond is None or self.value_quanta is None:
            return None
        if beyond.value_quanta is not None:
            bound = self.bound_quanta
            faster = bound is not None and beyond.value_quanta < bound
            return "tight" if faster else None
        proof = beyond.proof
        if proof is None or proof.bound_quanta is None:
            return None
        return "loose" if proof.bound_quanta >= self.value_quanta else None


class BestKnownFile(FileStruct, frozen=True, kw_only=True, tag="nest-best-known/1"):
    """What is known of all instances, by name."""

    instances: dict[str, BestKnown]
