"""The stream: the same examples as `sample`, in order, as tensors, whatever the threads; bounded; sharded by key."""

from __future__ import annotations

import gc
import os
import threading
import time
from concurrent.futures import Future
from itertools import islice

import numpy as np
import pytest
import torch
from conftest import every_distribution

import pathmerge as pm
from pathmerge.heldout import HeldOut
from pathmerge.problems.batch import Batch
from pathmerge.problems.distribution import Distribution
from pathmerge.stream import Stream, TensorBatch


def join(batches: list[TensorBatch], name: str) -> np.ndarray:
    return torch.cat([getattr(batch, name) for batch in batches]).numpy()


@pytest.mark.parametrize("distribution", every_distribution(32), ids=lambda d: d.describe())
def test_batches_are_the_examples_in_order(distribution: Distribution):
    whole = distribution.sample(640, seed=3)
    for threads, ahead in [(1, 1), (3, 5)]:
        with Stream(distribution, 64, seed=3, threads=threads, ahead=ahead) as stream:
            batches = list(islice(stream, 10))
            assert stream.next_example == 640
        for name in ("tokens", "label", "answers", "difficulty", "start", "goal"):
            assert np.array_equal(join(batches, name), getattr(whole, name))
        assert np.array_equal(join(batches, "identity").view(np.uint64), whole.identity)
    assert batches[0].tokens.dtype == torch.int64
    assert batches[0].answers.dtype == torch.bool


def test_a_stream_goes_on_where_it_stopped():
    with Stream(pm.Balanced(input_size=32), 50, seed=4) as stream:
        first = list(islice(stream, 3))
        place = stream.next_example
    with Stream(pm.Balanced(input_size=32), 50, seed=4, start=place) as stream:
        first += list(islice(stream, 2))
    assert np.array_equal(join(first, "tokens"), pm.Balanced(input_size=32).sample(250, seed=4).tokens)


@pytest.mark.parametrize("processes", [1, 2, 4])
def test_processes_share_a_batch_without_gap_or_overlap(processes: int):
    parts: list[list[TensorBatch]] = []
    for rank in range(processes):
        with Stream(pm.Naive(input_size=32), 64, seed=5, shard=(rank, processes)) as stream:
            parts.append(list(islice(stream, 3)))
    steps = [torch.cat([part[step].tokens for part in parts]) for step in range(3)]
    assert np.array_equal(torch.cat(steps).numpy(), pm.Naive(input_size=32).sample(192, seed=5).tokens)


def test_hits_are_counted_per_difficulty_for_what_was_handed_out():
    plain = pm.Balanced(input_size=32).sample(1000, seed=6)
    held = HeldOut.of(plain.identity[100:200])
    guarded = pm.Balanced(input_size=32).sample(1000, seed=6, held_out=held)
    with Stream(pm.Balanced(input_size=32), 100, seed=6, held_out=held, ahead=8) as stream:
        next(stream)
        before = sum(stream.hits.values())
        assert before == guarded.redraws[:100].sum()
        next(stream)
        expected = {
            (lookahead, 0, 0): int(guarded.redraws[:200][guarded.lookahead[:200] == lookahead].sum())
            for lookahead in range(1, 5)
        }
        assert sum(expected.values()) >= 100
        assert stream.hits == {cell: hits for cell, hits in expected.items() if hits}


def test_no_more_than_ahead_batches_exist():
    made: list[int] = []

    class Counted(pm.Naive):
        def sample(self, count: int, **options: object) -> Batch:  # pyright: ignore[reportIncompatibleMethodOverride]
            made.append(count)
            return super().sample(count, **options)  # pyright: ignore[reportArgumentType]

    with Stream(Counted(input_size=32), 16, ahead=3, threads=2) as stream:
        next(stream)
        time.sleep(0.2)
        assert len(made) <= 4
        next(stream)
        time.sleep(0.2)
        assert len(made) <= 5


def test_memory_does_not_grow():
    import tracemalloc

    def held_after(batches: int) -> int:
        for _ in range(batches):
            next(stream)
        gc.collect()
        return tracemalloc.get_traced_memory()[0]

    ahead = 4
    with Stream(pm.Balanced(input_size=64), 256, ahead=ahead) as stream:
        tracemalloc.start()
        early = held_after(100)
        late = held_after(200)
        tracemalloc.stop()
    one_batch = 256 * (64 * 8 + 24 + 9 * 8)
    # How many batches are drawn ahead at either moment is chance: any number up to `ahead`. A leak would be 200.
    assert late - early < (ahead + 2) * one_batch


def test_an_error_while_waiting_loses_no_batch(monkeypatch: pytest.MonkeyPatch):
    with Stream(pm.Naive(input_size=32), 8, seed=7, ahead=2) as stream:
        first = next(stream)

        def interrupt(_: object) -> None:
            raise KeyboardInterrupt

        with monkeypatch.context() as patch:
            patch.setattr(Future, "result", interrupt)
            with pytest.raises(KeyboardInterrupt):
                next(stream)
        assert stream.next_example == 8
        second = next(stream)
    assert np.array_equal(join([first, second], "tokens"), pm.Naive(input_size=32).sample(16, seed=7).tokens)


def test_readers_on_several_threads_share_the_batches():
    firsts: list[int] = []
    with Stream(pm.Naive(input_size=32), 4, ahead=3) as stream:

        def read() -> None:
            firsts.extend(next(stream).source.first for _ in range(50))

        readers = [threading.Thread(target=read) for _ in range(4)]
        for reader in readers:
            reader.start()
        for reader in readers:
            reader.join()
    assert sorted(firsts) == list(range(0, 800, 4))


def test_a_closed_or_inherited_stream_says_so(monkeypatch: pytest.MonkeyPatch):
    stream = Stream(pm.Naive(input_size=32), 4)
    next(stream)
    monkeypatch.setattr(os, "getpid", lambda: -1)
    with pytest.raises(RuntimeError, match="another process's: make a new one with start=4"):
        next(stream)
    stream.close()
    with pytest.raises(RuntimeError, match="closed"):
        next(stream)


def test_threads_end_with_the_stream():
    before = threading.active_count()
    with Stream(pm.Naive(input_size=32), 16, threads=3) as stream:
        next(stream)
    assert threading.active_count() == before


def test_a_failing_draw_reaches_the_reader():
    tiny = pm.Star(input_size=14, spokes=2, lookahead=1)
    with (
        Stream(tiny, 4, held_out=HeldOut.of(tiny.sample(500).identity), ahead=1) as stream,
        pytest.raises(pm.DrawError, match="was not found"),
    ):
        next(stream)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"size": 0}, "size=0"),
        ({"size": 10, "shard": (0, 3)}, "size=10: must be a multiple of the 3 processes"),
        ({"size": 9, "shard": (3, 3)}, r"shard\[0\]=3"),
        ({"size": 8, "threads": 0}, "threads=0"),
        ({"size": 8, "ahead": 0}, "ahead=0"),
        ({"size": 8, "start": -1}, "start=-1"),
        ({"size": 8, "seed": -1}, "seed=-1"),
        ({"size": 8, "split": "dev"}, "split='dev'"),
    ],
)
def test_bad_options_are_named(options: dict[str, object], message: str):
    with pytest.raises(ValueError, match=message):
        Stream(pm.Naive(input_size=32), **options)  # pyright: ignore[reportArgumentType]
