"""The canonical hash of a problem, in plain Python: what the kernels compute, for problems that come from elsewhere.

Edge order does not matter; the visited sequence does, and so does the current vertex of an inference step. A chance
collision (2^-64 per pair) costs a needless redraw and nothing else; `verify` compares the problems themselves.
"""

from __future__ import annotations

from pathmerge.layout import TASKS
from pathmerge.problems.problem import Problem

_MASK = 2**64 - 1


def _mix(x: int) -> int:
    x = ((x ^ (x >> 30)) * 0xBF58476D1CE4E5B9) & _MASK
    x = ((x ^ (x >> 27)) * 0x94D049BB133111EB) & _MASK
    return x ^ (x >> 31)


def identity(problem: Problem) -> int:
    """The uint64 that the held-out guard knows this problem by."""
    edge_sum = sum(_mix(((u << 9 | v) * 0x9E3779B97F4A7C15) & _MASK) for u, v in problem.edges) & _MASK
    h = _mix(edge_sum ^ (TASKS.index(problem.task) + 1))
    h = _mix(h ^ (problem.start << 9 | problem.goal))
    sequence = [*problem.visited, *(v for edge in problem.visited_edges for v in edge)]
    if problem.task == "inference" and problem.current is not None:
        sequence.append(problem.current)
    for vertex in sequence:
        h = _mix(h ^ vertex)
    return max(h, 1)
