"""Work side by side: the same results however many, and the process as it was before."""

from __future__ import annotations

import pytest
import torch

from pathmerge.parallel import Workers, forked

TINY = 1e-20


def product(_: int) -> float:
    """1e-40 where such numbers are computed with, 0 where they are taken for zero."""
    return float(torch.full((64,), TINY).mul(TINY).sum())


def test_numbers_too_small_to_matter_are_zero_in_every_worker():
    assert product(0) > 0
    for threads in (1, 2):
        with Workers(threads) as workers:
            assert list(workers.map(product, range(4))) == [0.0] * 4
            assert product(0) == 0
        assert product(0) > 0
        assert list(forked(product, range(8), threads)) == [0.0] * 8
    assert product(0) > 0


@pytest.mark.parametrize("first_out", [0, 1])
def test_contexts_may_overlap_in_any_order(first_out: int):
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    try:
        contexts = [Workers(1), Workers(2)]
        for context in contexts:
            context.__enter__()
        contexts[first_out].__exit__()
        assert (torch.get_num_threads(), product(0)) == (1, 0.0)
        contexts[1 - first_out].__exit__()
        assert torch.get_num_threads() == 2
        assert product(0) > 0
    finally:
        torch.set_num_threads(before)


def test_a_generator_nobody_finishes_leaves_the_process_as_it_was():
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    try:
        unfinished = forked(product, range(3), 1)
        next(unfinished)
        with Workers(1):
            pass
        assert torch.get_num_threads() == 1
        unfinished.close()  # pyright: ignore[reportAttributeAccessIssue]
        assert torch.get_num_threads() == 2
    finally:
        torch.set_num_threads(before)
