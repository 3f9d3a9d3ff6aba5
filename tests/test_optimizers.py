"""Optimizers: against slow formulas, by what their steps must look like, bit-exact resuming, and their errors."""

from __future__ import annotations

import math
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from pathmerge.training.optimizers import DEFAULTS, Kind, Optimizer, _fused_works, clip_gradients, make_optimizer

KINDS: list[Kind] = ["signum", "sophia", "adamw", "muon"]
SHAPES = {"embedding": (5, 3), "wide": (3, 7), "tall": (6, 3), "bias": (4,)}
Arrays = dict[str, np.ndarray]


def parameters(arrays: Arrays, dtype: torch.dtype = torch.float32) -> list[tuple[str, nn.Parameter]]:
    return [(name, nn.Parameter(torch.tensor(value, dtype=dtype))) for name, value in arrays.items()]


def set_gradients(named: list[tuple[str, nn.Parameter]], arrays: Arrays) -> None:
    for name, parameter in named:
        parameter.grad = torch.tensor(arrays[name], dtype=parameter.dtype)


class SlowOptimizer:
    """Each kind, an element at a time in float64, from the formulas in the papers."""

    def __init__(self, kind: str, start: Arrays, *, decay: float, gamma: float = 0.04) -> None:
        self.kind, self.decay, self.gamma = kind, decay, gamma
        self.p = {name: value.astype(np.float64) for name, value in start.items()}
        self.m = {name: np.zeros_like(value) for name, value in self.p.items()}
        self.h = {name: np.zeros_like(value) for name, value in self.p.items()}
        self.steps, self.clipped, self.free = 0, 0, 0

    def update_hessian(self, sampled: Arrays, batch_size: int) -> None:
        for name, gradient in sampled.items():
            for i in np.ndindex(gradient.shape):
                self.h[name][i] = 0.99 * self.h[name][i] + 0.01 * batch_size * gradient[i] ** 2

    def step(self, gradients: Arrays, rate: float) -> None:
        self.steps += 1
        for name, gradient in gradients.items():
            if self.kind == "muon" and name in ("wide", "tall"):
                self.muon(name, gradient, rate)
                continue
            for i in np.ndindex(gradient.shape):
                move = self.move(name, i, float(gradient[i]))
                self.p[name][i] -= rate * self.decay * self.p[name][i]
                self.p[name][i] -= rate * move

    def move(self, name: str, i: tuple[int, ...], gradient: float) -> float:
        m, h = self.m[name], self.h[name]
        if self.kind in ("adamw", "muon"):
            beta1, beta2 = (0.9, 0.999) if self.kind == "adamw" else (0.9, 0.95)
            m[i] = beta1 * m[i] + (1 - beta1) * gradient
            h[i] = beta2 * h[i] + (1 - beta2) * gradient**2
            unbiased = h[i] / (1 - beta2**self.steps)
            return m[i] / (1 - beta1**self.steps) / (math.sqrt(unbiased) + 1e-8)
        m[i] = 0.965 * m[i] + 0.035 * gradient
        if self.kind == "signum":
            return float(np.sign(m[i]))
        ratio = m[i] / max(self.gamma * h[i], 1e-12)
        self.clipped, self.free = self.clipped + (abs(ratio) > 1), self.free + (abs(ratio) < 1)
        return max(-1.0, min(1.0, ratio))

    def muon(self, name: str, gradient: np.ndarray, rate: float) -> None:
        self.m[name] = 0.95 * self.m[name] + 0.05 * gradient
        x = 0.05 * gradient + 0.95 * self.m[name]
        x = x / np.linalg.norm(x)
        for _ in range(5):
            gram = x @ x.T
            x = 3.4445 * x - 4.7750 * gram @ x + 2.0315 * gram @ gram @ x
        self.p[name] -= rate * self.decay * self.p[name]
        self.p[name] -= rate * 0.2 * math.sqrt(max(gradient.shape)) * x


# Inputs are the same numbers on both sides (rounded to the type first), so only the arithmetic differs. float64: values
# near 1 and some 30·10 roundings of 1e-16. float32: the same with 6e-8, and Muon's polynomial multiplies errors in
# small singular values by up to 3.4^5. A sign can differ only where an average of gradients near 1 is below 1e-7: none
# is with this seed.
TOLERANCE = {torch.float64: 1e-12, torch.float32: 2e-5}


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32], ids=str)
@pytest.mark.parametrize("kind", KINDS)
def test_thirty_steps_follow_the_formula(kind: Kind, dtype: torch.dtype):
    random = np.random.default_rng(5)

    def draw() -> Arrays:
        scale = {"embedding": 1.0, "wide": 0.1, "tall": 3.0, "bias": 0.01}
        drawn = {name: scale[name] * random.normal(size=shape) for name, shape in SHAPES.items()}
        return {name: torch.tensor(value, dtype=dtype).double().numpy() for name, value in drawn.items()}

    start, pull = draw(), draw()
    slow = SlowOptimizer(kind, start, decay=0.1)
    fast_parameters = parameters(start, dtype)
    fast = make_optimizer(kind, fast_parameters, weight_decay=0.1, adamw_names={"embedding"})
    for step in range(30):
        rate = 0.01 * (1 + step % 7)
        assert fast.wants_hessian == (kind == "sophia" and step % 10 == 0)
        if fast.wants_hessian:
            sampled = draw()
            set_gradients(fast_parameters, sampled)
            fast.update_hessian(64)
            slow.update_hessian(sampled, 64)
            assert not fast.wants_hessian
        noise = draw()
        gradients = {name: 0.5 * pull[name] + noise[name] for name in SHAPES}
        gradients = {name: torch.tensor(value, dtype=dtype).double().numpy() for name, value in gradients.items()}
        set_gradients(fast_parameters, gradients)
        fast.step(rate)
        slow.step(gradients, rate)
        for name, parameter in fast_parameters:
            error = np.abs(parameter.detach().double().numpy() - slow.p[name]).max()
            assert error < TOLERANCE[dtype], (step, name)
    assert all(np.abs(slow.p[name] - start[name]).max() > 0.1 for name in SHAPES)
    if kind == "sophia":  # the problem meets both sides of the clip
        assert min(slow.clipped, slow.free) > 100


DRAWS = 800


def test_sophia_estimates_the_gauss_newton_diagonal():
    """Softmax regression, where the Gauss-Newton diagonal of W[i, c] is the mean of x_i²·p_c·(1 - p_c)."""
    generator = torch.Generator().manual_seed(11)
    inputs = torch.randn(16, 3, generator=generator, dtype=torch.float64)
    weight = nn.Parameter(torch.randn(3, 4, generator=generator, dtype=torch.float64))
    optimizer = make_optimizer("sophia", [("w", weight)], weight_decay=0.0, beta2=0.0)
    probability = (inputs @ weight).softmax(1).detach()
    exact = (inputs**2).T @ (probability * (1 - probability)) / 16
    draws: list[Tensor] = []
    for _ in range(DRAWS):
        logits = inputs @ weight
        labels = torch.multinomial(logits.detach().softmax(1), 1, generator=generator).squeeze(1)
        nn.functional.cross_entropy(logits, labels).backward()
        optimizer.update_hessian(16)
        optimizer.zero_grad()
        draws.append(optimizer.state()["w/hessian"])
    estimates = torch.stack(draws)
    error = (estimates.mean(0) - exact).abs() / (estimates.std(0) / math.sqrt(DRAWS))
    assert float(error.max()) < 4  # 12 elements, 4 standard errors: one in a thousand if the draw were not fixed
    assert float((estimates.std(0) / math.sqrt(DRAWS) / exact).max()) < 0.1  # sharp enough to see a wrong factor


def test_sophia_with_a_tiny_hessian_is_signum():
    random = np.random.default_rng(3)
    start = {name: random.normal(size=shape) for name, shape in SHAPES.items()}
    found: list[list[Tensor]] = []
    for kind in ("signum", "sophia"):
        named = parameters(start)
        optimizer = make_optimizer(kind, named, weight_decay=0.1, gamma=1e-20)
        random = np.random.default_rng(4)
        for _ in range(25):
            set_gradients(named, {name: random.normal(size=shape) for name, shape in SHAPES.items()})
            if optimizer.wants_hessian:
                optimizer.update_hessian(64)
            optimizer.step(0.01)
        found.append([parameter.detach() for _, parameter in named])
    assert all(torch.equal(signum, sophia) for signum, sophia in zip(*found, strict=True))


def test_signum_moves_by_the_rate_and_stays_where_the_gradient_is_zero():
    weight = nn.Parameter(torch.zeros(5))
    optimizer = make_optimizer("signum", [("w", weight)], weight_decay=0.1)
    weight.grad = torch.tensor([3.0, -1e-4, 0.0, 1e20, -7.0])
    optimizer.step(1e-5)
    assert torch.equal(weight.detach(), torch.tensor([-1.0, 1.0, 0.0, -1.0, 1.0]) * 1e-5)


@pytest.mark.parametrize("shape", [(16, 16), (8, 40), (40, 8)])
def test_muon_moves_matrices_almost_orthogonally(shape: tuple[int, int]):
    generator = torch.Generator().manual_seed(1)
    weight = nn.Parameter(torch.zeros(shape))
    weight.grad = torch.randn(shape, generator=generator) * 100
    make_optimizer("muon", [("w", weight)], weight_decay=0.0).step(0.01)
    stretch = torch.linalg.svdvals(weight.detach()) / (0.01 * 0.2 * math.sqrt(max(shape)))
    # The polynomial leaves singular values near 1, not at 1: torch's docstring gives 0.5 to 1.5.
    assert 0.5 < float(stretch.min()) <= float(stretch.max()) < 1.5


def test_muon_gives_vectors_and_named_parameters_to_adamw():
    random = np.random.default_rng(8)
    start = {name: random.normal(size=shape) for name, shape in SHAPES.items()}
    mixed, plain = parameters(start), parameters({name: start[name] for name in ("embedding", "bias")})
    muon = make_optimizer("muon", mixed, weight_decay=0.1, adamw_names=["embedding"])
    adamw = make_optimizer("adamw", plain, weight_decay=0.1, beta1=0.9, beta2=0.95)
    for _ in range(5):
        gradients = {name: random.normal(size=shape) for name, shape in SHAPES.items()}
        set_gradients(mixed, gradients)
        set_gradients(plain, gradients)
        muon.step(0.01)
        adamw.step(0.01)
    assert all(torch.equal(dict(mixed)[name], parameter) for name, parameter in plain)
    assert {name for name in muon.state() if name.endswith("/muon_momentum")} == {
        "wide/muon_momentum",
        "tall/muon_momentum",
    }


@pytest.mark.parametrize("kind", KINDS)
def test_decay_acts_on_every_parameter_and_alone_where_gradients_are_zero(kind: Kind):
    named = parameters({name: np.ones(shape) for name, shape in SHAPES.items()})
    optimizer = make_optimizer(kind, named, weight_decay=0.5)
    set_gradients(named, {name: np.zeros(shape) for name, shape in SHAPES.items()})
    if optimizer.wants_hessian:
        optimizer.update_hessian(4)
    optimizer.step(0.1)
    for _, parameter in named:
        torch.testing.assert_close(parameter.detach(), torch.full_like(parameter, 0.95), rtol=1e-6, atol=0)


class Run:
    """A small model trained on examples that depend on the step alone, so that a run can begin anywhere."""

    def __init__(self, kind: Kind) -> None:
        torch.manual_seed(2)
        self.model = nn.Sequential(nn.Embedding(9, 8), nn.Linear(8, 17), nn.LayerNorm(17), nn.ReLU(), nn.Linear(17, 9))
        named = list(self.model.named_parameters())
        self.optimizer = make_optimizer(kind, named, weight_decay=0.1, hessian_every=4, adamw_names={"0.weight"})

    def estimate(self, step: int) -> None:
        generator = torch.Generator().manual_seed(step)
        logits: Tensor = self.model(torch.randint(9, (32,), generator=generator))
        labels = torch.multinomial(logits.detach().softmax(1), 1, generator=generator).squeeze(1)
        nn.functional.cross_entropy(logits, labels).backward()
        self.optimizer.update_hessian(32)
        self.optimizer.zero_grad()

    def go(self, first: int, last: int) -> None:
        for step in range(first, last):
            if self.optimizer.wants_hessian:
                self.estimate(step)
            tokens = torch.randint(9, (32,), generator=torch.Generator().manual_seed(1000 + step))
            nn.functional.cross_entropy(self.model(tokens), (tokens * 4 + 1) % 9).backward()
            clip_gradients(self.model.parameters(), 0.5)
            self.optimizer.step(0.003 * (1 + step % 3))
            self.optimizer.zero_grad()


def resumed(run: Run, kind: Kind, folder: Path) -> Run:
    save_file(run.optimizer.state(), folder / "optimizer.safetensors")
    save_file(run.model.state_dict(), folder / "model.safetensors")
    fresh = Run(kind)
    fresh.model.load_state_dict(load_file(folder / "model.safetensors"))
    fresh.optimizer.load_state(load_file(folder / "optimizer.safetensors"))
    return fresh


def same(one: dict[str, Tensor], other: dict[str, Tensor]) -> bool:
    return one.keys() == other.keys() and all(torch.equal(value, other[name]) for name, value in one.items())


@pytest.mark.parametrize("stop", [0, 7, 8])
@pytest.mark.parametrize("kind", KINDS)
def test_a_resumed_run_is_the_uninterrupted_one_bit_for_bit(kind: Kind, stop: int, tmp_path: Path):
    whole = Run(kind)
    whole.go(0, stop)
    second = resumed(whole, kind, tmp_path)
    assert same(second.optimizer.state(), whole.optimizer.state())
    forgetful = Run(kind)
    forgetful.model.load_state_dict(whole.model.state_dict())
    for run in (whole, second):
        run.go(stop, stop + 20)
    assert same(second.model.state_dict(), whole.model.state_dict())
    assert same(second.optimizer.state(), whole.optimizer.state())
    if stop:  # the state matters: without it the run is another
        forgetful.go(stop, stop + 20)
        assert not same(forgetful.model.state_dict(), whole.model.state_dict())


def test_sophia_stopped_between_its_estimate_and_its_step_does_not_estimate_twice(tmp_path: Path):
    whole = Run("sophia")
    whole.go(0, 8)
    whole.estimate(8)
    second = resumed(whole, "sophia", tmp_path)
    assert not second.optimizer.wants_hessian
    whole.go(8, 20)
    second.go(8, 20)
    assert same(second.model.state_dict(), whole.model.state_dict())


@pytest.mark.parametrize("kind", KINDS)
def test_the_state_is_a_contiguous_copy_with_the_same_entries_from_the_start(kind: Kind):
    weight = nn.Parameter(torch.randn(3, 4, generator=torch.Generator().manual_seed(1)).T)
    optimizer = make_optimizer(kind, [("w", weight)], weight_decay=0.1)
    before = optimizer.state()
    weight.grad = torch.ones_like(weight)
    if optimizer.wants_hessian:
        optimizer.update_hessian(2)
    optimizer.step(0.1)
    after = optimizer.state()
    assert before.keys() == after.keys()
    assert int(before["steps"]) == 0
    assert int(after["steps"]) == 1
    assert not any(before[name].any() for name in before if name.startswith("w/"))
    assert all(after[name].any() and after[name].is_contiguous() for name in after if name.startswith("w/"))


@pytest.mark.parametrize("kind", KINDS)
def test_a_state_that_does_not_fit_is_refused_whole(kind: Kind):
    run = Run(kind)
    run.go(0, 3)
    good, fresh = run.optimizer.state(), Run(kind).optimizer
    name = next(entry for entry in good if entry.startswith("4.weight/"))
    empty = fresh.state()
    tail = r"\(of another kind, or of other parameters\)"
    cases: list[tuple[dict[str, Tensor], str]] = [
        ({key: value for key, value in good.items() if key != name}, f"missing entry '{name}' {tail}"),
        (good | {"x/y": torch.zeros(1)}, f"unknown entry 'x/y' {tail}"),
        (
            good | {name: torch.zeros(2)},
            rf"'{name}' is torch.float32 of shape \(2,\): must be torch.float32 of shape \(9, 17\)",
        ),
        (
            good | {name: good[name].double()},
            rf"'{name}' is torch.float64 of shape \(9, 17\): must be torch.float32 of shape \(9, 17\)",
        ),
    ]
    for state, message in cases:
        with pytest.raises(ValueError, match=f"^optimizer state: {message}$"):
            fresh.load_state(state)
        assert same(fresh.state(), empty)
    for other in KINDS:
        if other != kind:
            with pytest.raises(ValueError, match=r"^optimizer state: (missing|unknown) entry"):
                Run(other).optimizer.load_state(good)


def one(kind: Any, **changes: Any) -> Optimizer:
    named = [("w", nn.Parameter(torch.ones(2, 2))), ("b", nn.Parameter(torch.ones(2)))]
    settings: dict[str, Any] = {"kind": kind, "parameters": named, "weight_decay": 0.1}
    return make_optimizer(**settings | changes)


@pytest.mark.parametrize(
    ("kind", "changes", "message"),
    [
        ("adam", {}, "kind='adam': must be one of signum, sophia, adamw, muon (did you mean adamw?)"),
        ("adamw", {"weight_decay": -0.1}, "weight_decay=-0.1: must be a finite number, 0 or more"),
        ("adamw", {"beta1": 1.0}, "beta1=1.0: must be a number from 0 up to, not including, 1"),
        ("muon", {"beta2": "0.9"}, "beta2='0.9': must be a number from 0 up to, not including, 1"),
        ("signum", {"beta2": 0.9}, "beta2=0.9: must be None (signum has no beta2)"),
        ("signum", {"epsilon": 1e-8}, "epsilon=1e-08: must be None (signum has no epsilon)"),
        ("sophia", {"epsilon": 0.0}, "epsilon=0.0: must be a finite number, above 0"),
        ("sophia", {"gamma": math.inf}, "gamma=inf: must be a finite number, above 0"),
        ("sophia", {"hessian_every": 0}, "hessian_every=0: must be a whole number in 1..2147483647"),
        ("adamw", {"parameters": []}, "parameters=[]: must hold at least one named parameter"),
        ("muon", {"adamw_names": ["x"]}, "adamw_names='x': must be one of w, b"),
        ("muon", {"adamw_names": ["w"]}, "kind='muon': must have a 2-D parameter that is not in adamw_names"),
    ],
)
def test_errors_name_field_value_and_what_is_allowed(kind: str, changes: dict[str, Any], message: str):
    with pytest.raises(ValueError, match=f"^{re.escape(message)}$"):
        one(kind, **changes)


def test_shared_names_and_shared_parameters_are_refused():
    weight = nn.Parameter(torch.ones(2))
    with pytest.raises(ValueError, match=r"^parameters: the name 'w' occurs twice; names must differ$"):
        one("adamw", parameters=[("w", weight), ("w", nn.Parameter(torch.ones(2)))])
    with pytest.raises(ValueError, match=r"^parameters: one parameter has two names"):
        one("adamw", parameters=[("w", weight), ("v", weight)])


def test_a_torch_without_muon_is_told_so(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.delattr(torch.optim, "Muon")
    with pytest.raises(
        ValueError, match=r"^kind='muon': torch .* has none \(2\.9 or newer has\); choose another kind$"
    ):
        one("muon")


@pytest.mark.parametrize("kind", KINDS)
def test_a_step_that_would_do_nothing_or_the_wrong_thing_raises(kind: Kind):
    optimizer = one(kind)
    with pytest.raises(RuntimeError, match=r"^parameter 'w' has no gradient"):
        optimizer.step(0.1)
    run = Run(kind)
    nn.functional.cross_entropy(run.model(torch.arange(9)), torch.arange(9)).backward()
    with pytest.raises(ValueError, match=r"^learning_rate=nan: must be a finite number, 0 or more$"):
        run.optimizer.step(math.nan)
    if kind == "sophia":
        with pytest.raises(RuntimeError, match=r"^sophia: the Hessian estimate is due"):
            run.optimizer.step(0.1)
        with pytest.raises(ValueError, match=r"^batch_size=0: must be a whole number in"):
            run.optimizer.update_hessian(0)
    else:
        with pytest.raises(RuntimeError, match=r"^update_hessian: this optimizer keeps no Hessian"):
            run.optimizer.update_hessian(9)
    assert same(run.optimizer.state(), Run(kind).optimizer.state())


def test_defaults_are_those_of_the_table():
    import pathmerge.training.optimizers as module

    rows = [line.strip("|").split("|") for line in str(module.__doc__).splitlines() if line.startswith("|")][2:]
    listed = {row[0].strip(): [cell.strip() for cell in row[2:]] for row in rows}
    fields = ("beta1", "beta2", "epsilon")
    for kind, values in DEFAULTS.items():
        in_table = [None if cell == "none" else float(cell) for cell in listed.pop(kind)]
        assert in_table == [values.get(field) for field in fields]
    assert not listed


def test_fused_is_left_to_torch_where_there_is_none():
    assert _fused_works([torch.zeros(2), torch.zeros(2, dtype=torch.float64)])
    assert not _fused_works([torch.zeros(2), torch.zeros(2, device="meta")])


def test_clipping_scales_to_the_limit_and_returns_the_norm_before():
    named = parameters({name: np.zeros(shape) for name, shape in SHAPES.items()})
    random = np.random.default_rng(6)
    gradients = {name: random.normal(size=shape) for name, shape in SHAPES.items()}
    norm = math.sqrt(sum(float((value**2).sum()) for value in gradients.values()))
    tensors = [parameter for _, parameter in named] + [nn.Parameter(torch.ones(2))]  # the last has no gradient
    for limit, expected in [(0.0, norm), (norm * 2, norm), (1.5, 1.5)]:
        set_gradients(named, gradients)
        assert clip_gradients(tensors, limit) == pytest.approx(norm, rel=1e-6)  # a float32 sum of 58 squares
        scaled = {name: parameter.grad for name, parameter in named}
        for name, gradient in scaled.items():
            assert gradient is not None
            # torch divides by norm + 1e-6, a part in ten million, and rounds to float32.
            np.testing.assert_allclose(gradient.numpy(), gradients[name] * (expected / norm), rtol=1e-6)
    with pytest.raises(ValueError, match=r"^limit=-1: must be a finite number, 0 or more$"):
        clip_gradients(tensors, -1)


def test_a_norm_that_is_not_finite_is_reported_and_scales_nothing():
    weight = nn.Parameter(torch.zeros(3))
    weight.grad = torch.tensor([1.0, math.inf, 2.0])
    assert clip_gradients(iter([weight]), 1.0) == math.inf
    assert torch.equal(weight.grad, torch.tensor([1.0, math.inf, 2.0]))
    assert clip_gradients([nn.Parameter(torch.zeros(3))], 1.0) == 0.0
