"""The intra-operator program of ``alpa``: one sharding for every layer.

Over one-hot ``s_i`` (layer ``i`` takes sharding ``a``) and one-hot ``e_ij``
(edge ``ij`` sees the pair ``ab``) it minimises

``Σ_i c_i·s_i + Σ_ij r_ij·e_ij``

where ``Σ_a s_i[a] = 1``, ``Σ_ab e_ij[a, b] = 1``, ``Σ_b e_ij[a, b] <=
s_i[a]`` and ``Σ_a e_ij[a, b] <= s_j[b]`` (Zheng et al. 2022, eq. 1;
``_call_solver_serialized_args`` in ``auto_sharding.py`` at alpa b8078a9f).

Layers with at most two neighbours are merged into them first, for each of
their choices by the best reply, which changes no optimum; so do chains and
branches that join again vanish altogether. Alpa merges nodes as well, by
rules of thumb. What is left goes to CBC.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import NamedTuple

from nest.errors import SolverError
from nest.solvers.base import Deadline

#: Alpa's time limit for one program.
LIMIT_S = 600.0

#: Cost of every pair of choices of two layers, in quanta.
Pairs = tuple[tuple[int, ...], ...]


class _Graph(NamedTuple):
    """Costs of nodes by choice, and of pairs of choices with neighbours."""

    nodes: list[dict[int, int]]
    around: list[dict[int, dict[tuple[int, int], int]]]

    def connect(
        self, u: int, v: int, table: dict[tuple[int, int], int]
    ) -> None:
        """Add the cost of pairs of choices to an edge, new or not."""
        forward = self.around[u].setdefault(v, {})
        backward = self.around[v].setdefault(u, {})
        for (a, b), value in table.items():
            forward[a, b] = backward[b, a] = forward.get((a, b), 0) + value


class _Reply(NamedTuple):
    """The best choice of a merged node for all choices of its neighbours."""

    node: int
    neighbours: tuple[int, ...]
    choice: dict[tuple[int, ...], int]


def least_shardings(
    costs: Sequence[Sequence[int | None]],
    edges: Sequence[tuple[int, int, Pairs]],
    deadline: Deadline,
) -> tuple[int, ...]:
    """Return the choice of every node with the least sum of costs.

    Parameters
    ----------
    costs
        Quanta of every node under every choice; ``None`` if it is not
        available. Every node has an available one.
    edges
        (source, target, quanta by source's and target's choice).
    deadline
        If time runs out, the best choice known is returned, as Alpa does.

    Raises
    ------
    SolverError
        If CBC fails.
    """
    graph = _Graph(
        [
            {a: value for a, value in enumerate(row) if value is not None}
            for row in costs
        ],
        [{} for _ in costs],
    )
    for u, v, pairs in edges:
        choices = itertools.product(graph.nodes[u], graph.nodes[v])
        graph.connect(u, v, {(a, b): pairs[a][b] for a, b in choices})
    replies = []
    ready = [u for u in range(len(costs)) if len(graph.around[u]) <= 2]
    while ready:
        node = ready.pop()
        if not 0 < len(graph.around[node]) <= 2:
            continue
        reply = _merge(graph, node)
        replies.append(reply)
        ready += reply.neighbours
    picks = [min(node, key=lambda a: (node[a], a)) for node in graph.nodes]
    if any(graph.around):
        picks = _solve(graph, picks, deadline)
    for reply in reversed(replies):
        around = tuple(picks[v] for v in reply.neighbours)
        picks[reply.node] = reply.choice[around]
    return tuple(picks)


def _merge(graph: _Graph, node: int) -> _Reply:
    """Take a node out; its neighbours pay for its best reply."""
    own = graph.nodes[node]
    tables = dict(graph.around[node])
    neighbours = tuple(tables)
    choice = {}
    paid = {}
    for around in itertools.product(*(graph.nodes[v] for v in neighbours)):
        paid[around], choice[around] = min(
            (
                own[a]
                + sum(
                    tables[v][a, b]
                    for v, b in zip(neighbours, around, strict=True)
                ),
                a,
            )
            for a in own
        )
    graph.around[node].clear()
    for v in neighbours:
        del graph.around[v][node]
    if len(neighbours) == 1:
        for (b,), value in paid.items():
            graph.nodes[neighbours[0]][b] += value
    else:
        u, v = neighbours
        graph.connect(u, v, {(a, b): value for (a, b), value in paid.items()})
    return _Reply(node, neighbours, choice)


def _solve(graph: _Graph, picks: list[int], deadline: Deadline) -> list[int]:
    """Return the picks, those of nodes with edges from the program."""
    best = _descend(graph, picks)
    limit_s = LIMIT_S
    if deadline.remaining_s is not None:
        limit_s = min(limit_s, deadline.remaining_s)
    if limit_s <= 0:
        return best
    import pulp

    left = [u for u, around in enumerate(graph.around) if around]
    program = pulp.LpProblem("shardings", pulp.LpMinimize)
    s = {
        u: {
            a: pulp.LpVariable(f"s_{u}_{a}", cat="Binary")
            for a in graph.nodes[u]
        }
        for u in left
    }
    terms = []
    for u in left:
        program += pulp.lpSum(s[u].values()) == 1
        least = min(graph.nodes[u].values())
        terms += [(graph.nodes[u][a] - least) * s[u][a] for a in s[u]]
    for u, v, table in _edges(graph):
        e = {
            (a, b): pulp.LpVariable(f"e_{u}_{v}_{a}_{b}", cat="Binary")
            for a, b in table
        }
        program += pulp.lpSum(e.values()) == 1
        for a in s[u]:
            program += pulp.lpSum(e[a, b] for b in s[v]) <= s[u][a]
        for b in s[v]:
            program += pulp.lpSum(e[a, b] for a in s[u]) <= s[v][b]
        terms += [table[pair] * e[pair] for pair in table]
    program += pulp.lpSum(terms)
    try:
        program.solve(
            pulp.PULP_CBC_CMD(msg=False, gapRel=0, timeLimit=limit_s)
        )
    except pulp.PulpSolverError as error:
        raise SolverError(f"alpa: engine CBC: {error}") from error
    found = list(best)
    for u in left:
        values = {a: variable.value() or 0.0 for a, variable in s[u].items()}
        found[u] = max(values, key=lambda a: (values[a], -a))
    return min(best, found, key=lambda picks: _total(graph, picks))


def _edges(
    graph: _Graph,
) -> list[tuple[int, int, dict[tuple[int, int], int]]]:
    """Return every edge once, as (node, larger node, costs)."""
    return [
        (u, v, table)
        for u, around in enumerate(graph.around)
        for v, table in around.items()
        if u < v
    ]


def _total(graph: _Graph, picks: Sequence[int]) -> int:
    """Return the sum of costs."""
    return sum(
        node[a] for node, a in zip(graph.nodes, picks, strict=True)
    ) + sum(table[picks[u], picks[v]] for u, v, table in _edges(graph))


def _descend(graph: _Graph, picks: Sequence[int]) -> list[int]:
    """Return picks that no change of one node makes better."""
    picks = list(picks)
    changed = True
    while changed:
        changed = False
        for u, node in enumerate(graph.nodes):
            around = graph.around[u]
            cost = {
                a: node[a]
                + sum(table[a, picks[v]] for v, table in around.items())
                for a in node
            }
            best = min(cost, key=lambda a: (cost[a], a))
            if cost[best] < cost[picks[u]]:
                picks[u], changed = best, True
    return picks
