"""Gradients, losses and answers of whole batches: against the plain model, for any threads and parts, in order."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from functools import cache

import numpy as np
import pytest
import torch
from plain_models import (
    CASES,
    gradient_error,
    gradients_of,
    plain_answer,
    plain_correct,
    plain_gradients,
    plain_logits,
    plain_loss,
    plain_weights,
    ready,
    shaken,
    unseen,
)
from samples import LEAST, goodness
from torch import Tensor
from torch.nn.functional import cross_entropy

import pathmerge as pm
from pathmerge.encodings.language import BLANK, Language
from pathmerge.encodings.language import PAD as TEXT_PAD
from pathmerge.encodings.sentences import LanguageBatch
from pathmerge.models.config import Edges, ModelConfig, OneHot, Rotary
from pathmerge.models.judge import LOSSES, Loss, ModelJudge, correct, greedy, lengths, parts
from pathmerge.models.transformer import Transformer
from pathmerge.parallel import Workers
from pathmerge.problems.batch import Batch
from pathmerge.training.gradients import Outcome, add_gradients, draw, make_task

SYMBOLIC = ["one-hot", "one-hot 2 heads", "rotary", "edges", "edges 1 head"]
TEXT = ["one-hot text", "rotary text"]
CLEAR = 5e-6  # as in test_models.py: no ReLU within this of its kink, where gradients jump

pytestmark = pytest.mark.usefixtures("one_core")


class Plain:
    """Pieces of a batch, with the plain model's logits of each."""

    def __init__(self, name: str) -> None:
        self.model = shaken(CASES[name].model)
        self.weights = plain_weights(self.model)
        problems = CASES[name].problems
        others = pm.Naive(input_size=problems.input_size) if problems.name == "balanced" else problems.fixed()[0]
        for seed in range(50):
            self.pieces: list[Batch] = [
                others.sample(3, seed=seed, threads=1),
                problems.sample(5, seed=seed, threads=1),
            ]
            if name in SYMBOLIC and not any((piece.answers.sum(1) > 1).any() for piece in self.pieces):
                continue  # losses would be alike
            self.tokens = torch.cat([self.model.inputs(piece).tokens for piece in self.pieces])
            self.targets = torch.cat([self.model.inputs(piece).targets for piece in self.pieces])
            before: list[float] = []
            self.logits = plain_logits(self.model.config, self.weights, self.tokens, before)
            if min(before) > CLEAR:
                return
        raise AssertionError("no problems without a ReLU near its kink")

    def places(self) -> list[tuple[Batch, int]]:
        return [(piece, row) for piece in self.pieces for row in range(len(piece))]

    def losses(self, kind: str, targets: Tensor | None = None) -> Tensor:
        chosen = self.targets if targets is None else targets
        answers = [piece.answers[row] for piece, row in self.places()]
        examples = zip(self.logits, chosen, answers, strict=True)
        return torch.stack([plain_loss(logits, target, a, kind) for logits, target, a in examples])


plain = cache(Plain)


def computed(
    model: Transformer,
    pieces: Sequence[Batch],
    *,
    kind: Loss = "label",
    total: int = 8,
    limit: int = 100,
    threads: int = 1,
    sampled: Tensor | None = None,
) -> tuple[dict[str, Tensor], Outcome]:
    model.zero_grad()
    with Workers(threads) as workers:
        outcome = add_gradients(
            model, make_task(model, pieces), workers, kind=kind, total=total, limit=limit, sampled=sampled
        )
    return gradients_of(model), outcome


# Gradients.


@pytest.mark.parametrize(("name", "kind"), [*((n, k) for n in SYMBOLIC for k in LOSSES), *((n, "label") for n in TEXT)])
def test_gradients_losses_and_answers_are_those_of_the_plain_model(name: str, kind: Loss):
    known = plain(name)
    model = known.model
    found, outcome = computed(model, known.pieces, kind=kind, total=8)
    losses = known.losses(kind)
    error, where = gradient_error(model.config, found, plain_gradients(losses.mean(), known.weights))
    assert error < 1e-5, where
    assert outcome.loss.dtype == np.float32
    assert np.abs(outcome.loss - losses.detach().numpy()).max() < 1e-5
    words = known.logits.argmax(-1).view(8, -1).tolist()  # given the words before, for text
    assert outcome.correct.tolist() == [
        plain_correct(piece, row, answer) for (piece, row), answer in zip(known.places(), words, strict=True)
    ]
    assert outcome.rows.tolist() == [int((~model.padding(tokens[None])).sum()) for tokens in known.tokens]
    half, _ = computed(model, known.pieces, kind=kind, total=16)
    assert all(torch.allclose(2 * half[n], found[n], rtol=1e-5, atol=1e-7) for n in found)


@pytest.mark.parametrize("name", SYMBOLIC)
def test_losses_differ_where_there_are_several_answers(name: str):
    known = plain(name)
    label, soft, total = (known.losses(kind).detach() for kind in LOSSES)
    several = torch.tensor([int(piece.answers[row].sum()) > 1 for piece, row in known.places()])
    assert ((label - soft).abs() > 1e-3)[several].any()
    assert ((soft - total) > 0.5)[several].all()  # at least log 2
    assert torch.allclose(soft[~several], label[~several])
    assert torch.allclose(total[~several], label[~several])


@pytest.mark.parametrize("name", [*SYMBOLIC, *TEXT])
def test_threads_do_not_change_a_bit(name: str):
    known = plain(name)
    once, first = computed(known.model, known.pieces, threads=1, limit=60)
    for threads in (2, 3):
        again, outcome = computed(known.model, known.pieces, threads=threads, limit=60)
        assert all(torch.equal(once[n], again[n]) for n in once)
        for column in ("loss", "correct", "rows"):
            assert np.array_equal(getattr(first, column), getattr(outcome, column))


@pytest.mark.parametrize("name", [*SYMBOLIC, *TEXT])
def test_parts_and_pieces_do_not_matter(name: str):
    known = plain(name)
    joined, whole = computed(known.model, known.pieces, limit=10**6)
    for limit in (1, 45, 150):
        found, outcome = computed(known.model, known.pieces, limit=limit)
        assert gradient_error(known.model.config, found, joined)[0] < 1e-5
        assert np.abs(outcome.loss - whole.loss).max() < 1e-5
        assert np.array_equal(outcome.rows, whole.rows)
    known.model.zero_grad()
    losses: list[np.ndarray] = []
    with Workers(1) as workers:
        for piece in known.pieces:  # gradients are added to what is there
            task = make_task(known.model, [piece])
            losses.append(add_gradients(known.model, task, workers, kind="label", total=8).loss)
    error, where = gradient_error(known.model.config, gradients_of(known.model), joined)
    assert error < 1e-5, where
    assert np.abs(np.concatenate(losses) - whole.loss).max() < 1e-5


@pytest.mark.parametrize(
    "heads",
    [1, 2],
)
def test_a_bias_that_softmax_does_not_see_gets_no_gradient(heads: int):
    model = shaken(OneHot(input_size=20, layers=2, heads=heads))
    found, _ = computed(model, [pm.Balanced(input_size=20).sample(8, threads=1)])
    assert sum(unseen(model.config, name) for name in found) == 2
    assert not any(found[name].any() for name in found if unseen(model.config, name))
    assert all(found[name].any() for name in found if not unseen(model.config, name))


def test_parts_hold_every_example_once_and_stay_within_the_limit():
    rows = torch.randint(1, 60, (200,), generator=torch.Generator().manual_seed(1))
    for limit in (1, 59, 100, 2048, 10**6):
        split = parts(rows, limit)
        assert sorted(torch.cat(split).tolist()) == list(range(200))
        for part in split:
            assert len(part) == 1 or int(rows[part].max()) * len(part) <= limit
    assert parts(torch.zeros(0, dtype=torch.int64)) == []
    assert torch.cat(parts(torch.tensor([3, 5, 3, 5]), 1)).tolist() == [1, 3, 0, 2]  # the longest first, else in order


# Labels drawn from the model itself.


@pytest.mark.parametrize("name", ["one-hot", "rotary text"])
def test_sampled_gradients_use_labels_drawn_with_the_given_numbers(name: str):
    known = plain(name)
    rows = known.logits.reshape(8, -1, known.logits.shape[-1])
    uniform = torch.rand(8, rows.shape[1], generator=torch.Generator().manual_seed(2))
    drawn: list[list[int]] = []
    for logits, numbers in zip(rows, uniform, strict=True):
        sums = torch.softmax(logits, -1).cumsum(-1)
        assert ((sums - numbers[:, None]).abs() > 1e-6).all()  # rounding cannot decide
        drawn.append([int((total <= number).sum()) for total, number in zip(sums, numbers, strict=True)])
    targets = torch.tensor(drawn)
    assert not torch.equal(targets, known.targets)
    kind = "soft" if name in SYMBOLIC else "label"  # whatever the loss: labels that were drawn are what is asked for
    found, outcome = computed(known.model, known.pieces, sampled=uniform, kind=kind)
    losses = known.losses("label", targets)
    error, where = gradient_error(known.model.config, found, plain_gradients(losses.mean(), known.weights))
    assert error < 1e-5, where
    assert np.abs(outcome.loss - losses.detach().numpy()).max() < 1e-5


def test_draws_follow_the_softmax():
    generator = torch.Generator().manual_seed(5)
    logits = 2 * torch.randn(3, 9, generator=generator)
    chances = torch.softmax(logits.double(), -1)
    count = 20_000
    found = draw(logits.repeat_interleave(count, 0), torch.rand(3 * count, generator=generator)).view(3, count)
    by_rows = draw(logits.expand(count, 3, 9), torch.rand(count, 3, generator=generator)).t()
    for drawn in (found, by_rows):
        for row in range(3):
            expected = {token: float(p) for token, p in enumerate(chances[row])}
            assert goodness(Counter(drawn[row].tolist()), expected) > LEAST
            wrong = {token: float(p) for token, p in enumerate(chances[row].roll(1))}
            assert goodness(Counter(drawn[row].tolist()), wrong) < LEAST
    together = Counter(zip(by_rows[0].tolist(), by_rows[1].tolist(), strict=True))
    pairs = {(a, b): float(chances[0, a] * chances[1, b]) for a in range(9) for b in range(9)}
    assert goodness(together, pairs) > LEAST


def test_draws_at_the_edges():
    eps = 2.0**-24  # torch.rand gives multiples of it
    even = torch.zeros(4, 8)
    assert draw(even, torch.tensor([0.0, eps, 0.5 + eps, 1 - eps])).tolist() == [[0], [0], [4], [7]]
    last = torch.full((2, 8), -200.0)
    last[:, 5] = 0
    assert draw(last, torch.tensor([0.5, 1 - eps])).tolist() == [[5], [5]]  # never a token of no probability after it
    wide = torch.randn(64, 500, generator=torch.Generator().manual_seed(6))
    assert (draw(wide, torch.full((64,), 1 - eps)) < 500).all()


def test_a_token_without_probability_is_not_drawn():
    logits = torch.full((1, 8), -200.0)
    logits[:, 5] = 0
    assert torch.softmax(logits, -1)[0, 0] == 0
    assert draw(logits, torch.zeros(1)).tolist() == [[5]]


# Judging.


@pytest.mark.parametrize(
    ("name", "count"),
    [("one-hot", 90), ("one-hot 2 heads", 20), ("edges 1 head", 20), ("one-hot text", 4), ("rotary text", 4)],
)
def test_a_judge_says_what_the_plain_model_does(name: str, count: int):
    model, batch, inputs = ready(name, count, 7)
    weights = {n: w.detach() for n, w in plain_weights(model).items()}
    with Workers(1) as workers:
        judge = ModelJudge(model, workers)
        right, loss = judge(batch)
        words, again = judge.answer(batch)
    logits = plain_logits(model.config, weights, inputs.tokens)
    if name in TEXT:
        expected = [plain_answer(model.config, weights, tokens) for tokens in inputs.tokens]
    else:
        expected = [[int(answer)] for answer in logits.argmax(1)]
    assert words.tolist() == expected
    assert right.dtype == np.bool_
    assert right.tolist() == [plain_correct(batch, row, answer) for row, answer in enumerate(expected)]
    assert loss.dtype == np.float32
    plain_losses = [float(plain_loss(*pair)) for pair in zip(logits, inputs.targets, strict=True)]
    assert np.abs(loss - plain_losses).max() < 1e-5
    assert np.array_equal(loss, again)
    if count == 90:
        assert len(parts(lengths(model, inputs.tokens))) > 1
        assert 0 < right.sum() < count


@cache
def writer() -> tuple[Transformer, LanguageBatch]:
    """A text model that knows some of its problems by heart."""
    model = Rotary(input_size=14, layers=1, text=True).build()
    batch = Language(input_size=14, graph="naive").sample(8, seed=3, threads=1)
    inputs = model.inputs(batch)
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    for _ in range(40):
        optimizer.zero_grad()
        cross_entropy(model(inputs.tokens)[:5].flatten(0, 1), inputs.targets[:5].flatten()).backward()
        optimizer.step()
    return model, batch


def test_text_is_written_greedily_and_judged_as_a_whole():
    model, batch = writer()
    weights = {n: w.detach() for n, w in plain_weights(model).items()}
    with Workers(1) as workers:
        judge = ModelJudge(model, workers)
        right, _ = judge(batch)
        words, _ = judge.answer(batch)
    expected = [plain_answer(model.config, weights, torch.from_numpy(tokens)) for tokens in batch.tokens]
    assert words.tolist() == expected
    assert right.tolist() == [plain_correct(batch, row, answer) for row, answer in enumerate(expected)]
    assert 0 < right.sum() < len(batch)
    with torch.no_grad():
        given = model.inputs(batch)
        blank = given.tokens.clone()
        blank[:, -4:] = BLANK
        for tokens in (given.tokens, blank):  # the words that are given for training play no part
            assert torch.equal(greedy(model, tokens, model.prepare())[0], torch.from_numpy(words))
        teacher = model(given.tokens).argmax(-1)
    assert correct(batch, teacher.numpy()).sum() <= right.sum()


def test_padding_that_is_written_as_a_word_hides_no_other_row():
    model, _, inputs = ready("one-hot text", 4)
    tokens = inputs.tokens.clone()
    tokens[:, -2] = TEXT_PAD
    weights = plain_weights(model)
    assert (model(tokens) - plain_logits(model.config, weights, tokens)).abs().max() < 1e-5


@pytest.mark.parametrize(
    ("config", "problems", "count"),
    [
        (OneHot(input_size=32, layers=2), pm.Balanced(input_size=32), 300),
        (Edges(input_size=32, layers=2), pm.SelectionInference(input_size=32), 600),
        (Rotary(input_size=20, layers=1, text=True), Language(input_size=20), 90),
    ],
)
def test_threads_do_not_change_a_judgement(config: ModelConfig, problems, count: int):
    model = shaken(config)
    batch = problems.sample(count, seed=2, threads=1)
    assert len(parts(lengths(model, model.inputs(batch).tokens))) > 2
    found: list[tuple[np.ndarray, np.ndarray]] = []
    for threads in (1, 2, 3):
        with Workers(threads) as workers:
            found.append(ModelJudge(model, workers)(batch))
    for right, loss in found[1:]:
        assert np.array_equal(right, found[0][0])
        assert np.array_equal(loss, found[0][1])


def test_an_empty_batch_is_judged_and_examples_do_not_see_each_other():
    model, batch, _ = ready("one-hot", 40, 7)
    with Workers(1) as workers:
        judge = ModelJudge(model, workers)
        assert [column.shape for column in judge(batch.take(slice(0, 0)))] == [(0,), (0,)]
        right, loss = judge(batch)
        some, cost = judge(batch.take(slice(11, 19)))
    assert np.array_equal(some, right[11:19])
    assert np.abs(cost - loss[11:19]).max() < 1e-5
