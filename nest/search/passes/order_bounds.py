"""What no order of a plan's passes can be shorter than.

Rules and proofs: docs/cost-model.md, *Orders of plans*.
"""

from __future__ import annotations

from nest.search.passes.list_orders import OrderScope
from nest.units import ceil_div


def order_bound(scope: OrderScope) -> int:
    """Return a lower bound on the end of the passes, in quanta.

    It holds for every order whose passes in flight fit in memory.
    """
    blocks = range(len(scope.members))
    return max(
        max(_work_bound(scope, block), _memory_bound(scope, block)) for block in blocks
    )


def _work_bound(scope: OrderScope, block: int) -> int:
    """Return what a block's work and its neighbors say.

    Its first pass comes behind one forward pass of every chunk in front. Its first
    gradients of inputs come behind a trip to the last chunk and back; until then it
    runs forward passes that are all in flight. Its last ones come in front of those of
    every chunk in front; gradients of weights that come later are in flight as well.
    """
    chunks, count = scope.members[block], scope.num_micro_batches
    first, last = chunks[0], chunks[-1]
    forward, inputs, weights = (
        count * sum(times[chunk] for chunk in chunks)
        for times in (scope.forward, scope.inputs, scope.weights)
    )
    fill, drain = sum(scope.forward[:first]), sum(scope.inputs[:first])
    trip = sum(scope.forward) + sum(scope.inputs[last + 1 :])
    ahead = min(forward, _most_in_flight(scope, block, scope.forward))
    late = min(weights, _most_in_flight(scope, block, scope.weights))
    start = max(fill + forward, trip + forward - ahead)
    return start + inputs + weights - late + max(drain, late)


def _most_in_flight(scope: OrderScope, block: int, times: list[int]) -> int:
    """Return the most time of passes in flight, one per micro-batch.

    With ``Σ n kept <= free`` it is at most ``free · max (time / kept)``.
    """
    longest = 0
    for chunk in scope.members[block]:
        kept_bytes = scope.kept_bytes[chunk]
        if kept_bytes == 0:
            return scope.num_micro_batches * sum(times)
        time = times[chunk] * scope.free_bytes[block] // kept_bytes
        longest = max(longest, time)
    return longest


def _memory_bound(scope: OrderScope, block: int) -> int:
    """Return what a block's memory says.

    A micro-batch stays in a chunk at least for its passes there and a trip from it to
    the last chunk and back. Bytes times stays of all of them fit in the free bytes,
    times the time from the block's first pass on. No more than ``free // min kept`` are
    in flight, which fill no more bytes than that many of the largest.
    """
    chunks, count = scope.members[block], scope.num_micro_batches
    sizes = [scope.kept_bytes[chunk] for chunk in chunks]
    free_bytes = scope.free_bytes[block]
    if min(sizes) <= 0 or free_bytes < min(sizes):
        return 0
    free_bytes = min(free_bytes, free_bytes // min(sizes) * max(sizes))
    area = count * sum(scope.kept_bytes[chunk] * scope.stay(chunk) for chunk in chunks)
    return sum(scope.forward[: chunks[0]]) + ceil_div(area, free_bytes)
