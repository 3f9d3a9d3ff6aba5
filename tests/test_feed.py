"""What training is fed: the stream, stages of a curriculum, tangled and easier shares, and nothing that is held out."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from short_runs import lines_of, tiny

import pathmerge as pm
from pathmerge.evaluation.suite import guard_for, hold_out_test, hold_out_validation
from pathmerge.problems.batch import Batch
from pathmerge.training.feed import Feed
from pathmerge.training.gradients import make_task


def pieces_of(feed: Feed, sizes: list[int]) -> list[list[Batch]]:
    return [feed.next(size) for size in sizes]


def test_without_a_curriculum_the_feed_is_the_stream():
    problem = pm.Balanced(input_size=20)
    with Feed(problem, pm.Curriculum(), seed=2, held_out=None) as feed:
        got = np.concatenate([piece.tokens for (piece,) in pieces_of(feed, [32, 32, 64, 32])])
    assert (got == problem.sample(160, seed=2).tokens).all()


def test_a_share_of_each_batch_is_tangled_once_the_problem_is_mastered_and_after_a_restart():
    rule = pm.Curriculum(over="size", first=5, step=4, threshold=0.0, window=32, tangled=0.5, easier=0.25)
    problem = pm.Balanced(input_size=32, max_lookahead=4)

    def parents(batch: pm.Batch) -> list[int]:
        return [int(np.bincount(targets)[1:].max()) for targets in batch.edges[:, :, 1]]

    with Feed(problem, rule, seed=3, held_out=None) as feed:
        for sizes in ([64], [48, 16]):
            assert [len(piece) for piece in feed.next(64)] == sizes
            feed.observe(32, 32)
        assert feed.mastered
        now, tangled, easier = feed.next(64)
        assert (len(now), len(tangled), len(easier)) == (16, 32, 16)
        assert now.distribution == problem
        assert tangled.distribution == pm.Tangled(input_size=32, max_lookahead=3)
        assert min(parents(tangled)) >= 2 > min(parents(now))
        state = feed.state()
        wanted = feed.next(64)
        assert not (wanted[1].identity == tangled.identity).any()
    with Feed(problem, rule, seed=3, held_out=None) as again:
        again.load_state(state)
        for one, other in zip(wanted, again.next(64), strict=True):
            np.testing.assert_array_equal(one.tokens, other.tokens)


def test_the_tangled_share_of_some_batches_is_of_the_largest_lookahead():
    rule = pm.Curriculum(tangled=0.5, largest=3)
    problem = pm.Balanced(input_size=32)  # nine vertices: none is left beside two chains of four
    with Feed(problem, rule, seed=3, held_out=None) as feed:
        shares = [beside for _, beside in pieces_of(feed, [64] * 7)]
        state = feed.state()
        wanted = feed.next(64)
    assert [int(share.lookahead.min()) == 4 for share in shares] == [True, False, False, True, False, False, True]
    assert max(int(share.lookahead.max()) for share in (shares[1], shares[2])) == 3
    assert not set(shares[0].identity.tolist()) & set(shares[3].identity.tolist())
    with Feed(problem, rule, seed=3, held_out=None) as again:
        again.load_state(state)
        for one, other in zip(wanted, again.next(64), strict=True):
            np.testing.assert_array_equal(one.tokens, other.tokens)


def test_tangled_problems_grow_within_their_own_bounds():
    stages = pm.Curriculum(over="size", first=4, step=3).stages(pm.Tangled(input_size=32, max_lookahead=3))
    assert [(stage.vertices, stage.max_lookahead) for stage in stages if isinstance(stage, pm.Tangled)] == [
        (4, 1),
        (7, 2),
        (None, 3),
    ]
    with pytest.raises(ValueError, match=r"curriculum.first=3: must be a whole number in 4..9"):
        pm.Curriculum(over="size", first=3).stages(pm.Tangled(input_size=32))
    assert pm.Curriculum(tangled=0.8).tangled_part(128) == 96


def test_without_a_rule_of_mastery_problems_are_tangled_from_the_beginning():
    with Feed(pm.Balanced(input_size=32), pm.Curriculum(tangled=0.25), seed=3, held_out=None) as feed:
        assert [len(piece) for piece in feed.next(64)] == [48, 16]


def test_a_curriculum_moves_when_the_window_is_good_and_keeps_easier_problems():
    rule = pm.Curriculum(over="size", first=4, step=2, threshold=0.75, window=64, easier=0.25)
    problem = pm.Balanced(input_size=32)
    with Feed(problem, rule, seed=2, held_out=None) as feed:
        assert [getattr(stage, "vertices", None) for stage in feed.stages] == [4, 6, 8, None]
        assert [len(piece) for piece in feed.next(64)] == [64]
        assert not feed.observe(40, 64), "40 of 64 is below 0.75"
        assert not feed.observe(24, 32), "the window holds 64 of the last 96: the first 64 are still in it"
        assert feed.observe(32, 32), "the last 64 are 56 right"
        assert feed.stage == 1
        for number in range(4):
            now, easier = feed.next(64)
            assert (len(now), len(easier)) == (48, 16)
            assert now.distribution == feed.stages[1]
            assert easier.distribution == feed.stages[0], number
        feed.observe(64, 64)
        assert [feed.next(64)[1].distribution == feed.stages[turn] for turn in (1, 0, 1)] == [True] * 3
        feed.observe(64, 64)
        assert feed.stage == 3
        assert not feed.mastered
        feed.observe(60, 64)
        assert feed.mastered
        assert not feed.observe(64, 64), "told once"


def test_a_stage_may_ask_for_its_own_largest_lookahead():
    rule = pm.Curriculum(over="size", first=5, step=2, threshold=0.75, window=64, newest=0.5)
    with Feed(pm.Balanced(input_size=32), rule, seed=2, held_out=None) as feed:
        assert feed.newest == 2, "five vertices: two chains of two edges"
        assert not feed.observe(64, 64), "none of the newest was seen"
        assert not feed.observe(56, 64, (3, 8)), "good on all, not on the newest"
        state = feed.state()
        feed.load_state(state)
        assert not feed.observe(28, 32, (2, 4)), "five of twelve in the last two batches"
        feed.next(64)
        assert feed.observe(28, 32, (2, 4)), "half in the last 64"
        assert (feed.stage, feed.newest) == (1, 3)
        feed.next(64)
        feed.observe(64, 64, (64, 64))
        assert feed.newest == 4
        assert not feed.observe(64, 64, (7, 16))
        assert not feed.mastered
        assert feed.observe(64, 64, (8, 16))
        assert feed.mastered
        # A run begun before there was such a rule.
        feed.load_state({**state, "window": [[56, 64]]})
        assert not feed.observe(28, 32, (1, 4))
    with Feed(pm.Balanced(input_size=32), pm.Curriculum(over="size"), seed=2, held_out=None) as feed:
        assert feed.newest is None


def test_a_feed_goes_on_from_its_state_and_shards_make_the_whole():
    rule = pm.Curriculum(over="lookahead", window=64, easier=0.5)
    problem = pm.Balanced(input_size=32)

    def play(feed: Feed, steps: int) -> list[bytes]:
        found: list[bytes] = []
        for _ in range(steps):
            pieces = feed.next(64)
            found += [piece.tokens.tobytes() for piece in pieces]
            feed.observe(63 if feed.batches % 3 else 10, 32)
        return found

    with Feed(problem, rule, seed=2, held_out=None) as feed:
        play(feed, 2)
        state = feed.state()
        rest = play(feed, 9)
        assert feed.stage > state["stage"]
    with Feed(problem, rule, seed=2, held_out=None) as again:
        again.load_state(state)
        assert play(again, 9) == rest
    feeds = [Feed(problem, rule, seed=2, held_out=None, shard=(rank, 2)) for rank in range(2)]
    whole = Feed(problem, rule, seed=2, held_out=None)
    for feed in (*feeds, whole):
        feed.load_state(state)
    for _ in range(3):
        parts = [feed.next(64) for feed in feeds]
        for number, piece in enumerate(whole.next(64)):
            joined = np.concatenate([part[number].tokens for part in parts])
            assert (joined == piece.tokens).all()
    for feed in (*feeds, whole):
        feed.close()


def test_scattered_edges_are_the_same_problems_in_other_places(tmp_path: Path):
    problem, small = pm.Balanced(input_size=32), pm.Balanced(input_size=32, vertices=5)
    model = pm.OneHot(input_size=32, layers=1).build()
    pieces = [small.sample(40, seed=1), small.sample(20, seed=2)]
    slots = np.random.default_rng(1).permutation(9)
    plain, moved = (make_task(model, pieces, order).inputs.tokens.numpy() for order in (None, slots))
    assert (plain[:, -5:] == moved[:, -5:]).all()
    used: set[int] = set()
    for before, after in zip(plain[:, :-5].reshape(60, 9, 3), moved[:, :-5].reshape(60, 9, 3), strict=True):
        assert sorted(map(tuple, before.tolist())) == sorted(map(tuple, after.tolist()))
        used |= set(np.flatnonzero((after != after.max()).any(1)).tolist())
    assert used == set(np.flatnonzero(slots >= 4).tolist())  # all examples share five slots
    rule = pm.Curriculum(over="size", first=5, step=4, window=64, threshold=0.0, scatter=True)
    model_config = pm.OneHot(input_size=32, layers=1)
    runs = [
        pm.train(tiny(problem=problem, model=model_config, curriculum=each), tmp_path, quiet=True)
        for each in (rule, replace(rule, scatter=False))
    ]
    losses = [[line["loss"] for line in lines_of(run, "train")] for run in runs]
    assert losses[0] != losses[1]


def test_no_training_example_is_held_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    config = tiny(curriculum=pm.Curriculum(over="size", first=4, window=64, threshold=0.05))
    seen: list[np.ndarray] = []
    original = Feed.next

    def spy(self: Feed, size: int) -> list[Batch]:
        pieces = original(self, size)
        seen.extend(piece.identity for piece in pieces)
        return pieces

    monkeypatch.setattr(Feed, "next", spy)
    run = pm.train(config, tmp_path, quiet=True)
    test = hold_out_test(config.problem, 50, 0)
    validation = hold_out_validation(config.problem, 50, 0, besides=test)
    met = np.concatenate(seen)
    assert len(met) == run.examples == 640
    assert not np.isin(met, (test + validation).identities).any()
    assert not np.isin(test.identities, validation.identities).any()
    assert lines_of(run, "train")[-1]["guard"] > 0, "at this size held-out problems do come up"


def test_a_cell_that_other_cells_hold_out_almost_whole_is_named_and_not_guarded():
    star = pm.Star(input_size=20)
    held = hold_out_test(star, 4000, 0)
    guard, named = guard_for([star], held)
    starved = pm.Star(input_size=20, spokes=4, lookahead=1)
    assert starved.problem_count() == 20
    assert any(text.startswith(starved.describe()) for text in named)
    assert np.isin(starved.sample(100).identity, held.identities).mean() > 0.9
    assert not np.isin(starved.sample(100).identity, guard.identities).any()
    assert guard_for([pm.Balanced(input_size=32)], held) == (held, []), "nothing to free: the same set"


def test_a_difficulty_with_few_problems_is_named_when_training_begins(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    """Five vertices in two chains of two: 120 problems, of which 5% are held out."""
    pm.train(tiny(examples=32), tmp_path)
    (line,) = [line for line in capsys.readouterr().err.splitlines() if "by heart" in line]
    assert "lookahead=2" in line
    assert "6 of 50 examples held out (6 of at least 120 distinct problems" in line
