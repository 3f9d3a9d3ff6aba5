"""Four optimizers behind one small interface; decoupled weight decay acts on every parameter in all of them.

| kind   | step (after p -= rate·decay·p)                  | beta1 | beta2 | epsilon |
|--------|-------------------------------------------------|-------|-------|---------|
| signum | p -= rate·sign(m)                               | 0.965 | none  | none    |
| sophia | p -= rate·clip(m / max(gamma·h, epsilon), 1)    | 0.965 | 0.99  | 1e-12   |
| adamw  | torch.optim.AdamW                               | 0.9   | 0.999 | 1e-8    |
| muon   | torch.optim.Muon for matrices, AdamW for others | 0.95  | 0.95  | 1e-8    |

m is the average of gradients with memory beta1, h that of the Hessian's diagonal with memory beta2.

Choices a reader could not guess:
- `signum` with rate 1e-5 and decay 0.1 is what the published runs really used: their Sophia never estimated a Hessian.
- `sophia` is the paper's Algorithm 3 (Liu et al. 2023): the batch size is a factor of each estimate, so `gamma` means
  the same at every batch size. The authors' code leaves it out of h and has rho·batch·h below the fraction: its rho is
  `gamma` here, and 0.04 its default. They refresh h after a step, the paper and we before it. A step without its due
  estimate raises: silently skipping it is how the published runs became Signum.
- `muon` takes Moonshot's rate (match_rms_adamw: 0.2·sqrt(longer side)), so that one rate and decay serve both parts.
  beta1 is Muon's momentum and beta2 belongs to AdamW, whose own beta1 is 0.9 there.
- On a CPU Muon's matrix products keep the parameters' type. torch rounds to bfloat16, which is slower there (2 to 40
  times, measured at width 190) and kills the process on virtual machines that announce AMX but do not allow it.
- Each parameter needs a gradient at each step, so one counter serves all; a missing one raises, where torch skips it.
- Buffers exist from the start, so the state has the same entries before the first step as after it.
"""

# torch's list operations carry an underscore but are its only ones; on a GPU they save a launch per parameter.
# pyright: reportPrivateImportUsage=false
from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, get_args

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from pathmerge.errors import check_choice, check_range

Kind = Literal["signum", "sophia", "adamw", "muon"]
Named = Sequence[tuple[str, nn.Parameter]]

DEFAULTS: dict[str, dict[str, float]] = {
    "signum": {"beta1": 0.965},
    "sophia": {"beta1": 0.965, "beta2": 0.99, "epsilon": 1e-12},
    "adamw": {"beta1": 0.9, "beta2": 0.999, "epsilon": 1e-8},
    "muon": {"beta1": 0.95, "beta2": 0.95, "epsilon": 1e-8},
}
MUON_ADAMW_BETA1 = 0.9


@dataclass(frozen=True, kw_only=True)
class Settings:
    """Every number an optimizer needs but the rate; a kind leaves those it has no use for at nan."""

    weight_decay: float
    beta1: float
    beta2: float = math.nan
    epsilon: float = math.nan
    gamma: float
    hessian_every: int


class Optimizer(ABC):
    """Moves parameters by their gradients; all that it remembers is in `state`."""

    def __init__(self, parameters: Named) -> None:
        self._names = [name for name, _ in parameters]
        self._parameters: list[Tensor] = [parameter for _, parameter in parameters]
        self._buffers: dict[str, Tensor] = {}
        self._counters = {"steps": 0}

    @property
    def wants_hessian(self) -> bool:
        """Whether `update_hessian` is due before the next step."""
        return False

    @torch.no_grad()
    def step(self, learning_rate: float) -> None:
        """One step by the gradients in `.grad`, with this rate."""
        self._move(self._gradients(), _positive("learning_rate", learning_rate, or_zero=True))
        self._counters["steps"] += 1

    def update_hessian(self, batch_size: int) -> None:
        """Take in `.grad` of the mean loss against `batch_size` labels drawn from the model's own logits."""
        raise RuntimeError("update_hessian: this optimizer keeps no Hessian; call it only while wants_hessian is true")

    def zero_grad(self) -> None:
        for parameter in self._parameters:
            parameter.grad = None

    def state(self) -> dict[str, Tensor]:
        """A copy of all that is remembered: "parameter name/quantity" and counters, ready for safetensors."""
        found = {name: torch.tensor(count, dtype=torch.int64) for name, count in self._counters.items()}
        for name, buffer in self._buffers.items():
            found[name] = buffer.detach().clone(memory_format=torch.contiguous_format)
        return found

    @torch.no_grad()
    def load_state(self, state: Mapping[str, Tensor]) -> None:
        """The inverse of `state`; nothing is changed unless every entry fits."""
        expected = self.state()
        for name in sorted(expected.keys() ^ state.keys()):
            problem = "missing" if name in expected else "unknown"
            raise ValueError(f"optimizer state: {problem} entry {name!r} (of another kind, or of other parameters)")
        for name, own in expected.items():
            given = state[name]
            if given.shape != own.shape or given.dtype != own.dtype:
                raise ValueError(
                    f"optimizer state: {name!r} is {given.dtype} of shape {tuple(given.shape)}: "
                    f"must be {own.dtype} of shape {tuple(own.shape)}"
                )
        for name in self._counters:
            self._counters[name] = int(state[name])
        for name, buffer in self._buffers.items():
            buffer.copy_(state[name])

    @abstractmethod
    def _move(self, gradients: list[Tensor], rate: float) -> None:
        """Change the parameters and the buffers."""

    def _gradients(self) -> list[Tensor]:
        found: list[Tensor] = []
        for name, parameter in zip(self._names, self._parameters, strict=True):
            if parameter.grad is None:
                raise RuntimeError(f"parameter {name!r} has no gradient: call backward on a loss that depends on it")
            found.append(parameter.grad)
        return found

    def _new_buffers(self, quantity: str) -> list[Tensor]:
        """A zero for each parameter, kept in the state under this name."""
        found = [torch.zeros_like(parameter, requires_grad=False) for parameter in self._parameters]
        self._buffers.update({f"{name}/{quantity}": buffer for name, buffer in zip(self._names, found, strict=True)})
        return found


class Signum(Optimizer):
    def __init__(self, parameters: Named, settings: Settings) -> None:
        super().__init__(parameters)
        self._settings = settings
        self._momentum = self._new_buffers("momentum")

    def _move(self, gradients: list[Tensor], rate: float) -> None:
        torch._foreach_mul_(self._momentum, self._settings.beta1)
        torch._foreach_add_(self._momentum, gradients, alpha=1 - self._settings.beta1)
        torch._foreach_mul_(self._parameters, 1 - rate * self._settings.weight_decay)
        torch._foreach_add_(self._parameters, self._direction(), alpha=-rate)

    def _direction(self) -> tuple[Tensor, ...]:
        return torch._foreach_sign(self._momentum)


class Sophia(Signum):
    def __init__(self, parameters: Named, settings: Settings) -> None:
        super().__init__(parameters, settings)
        self._hessian = self._new_buffers("hessian")
        self._counters["estimated_at"] = -1

    @property
    def wants_hessian(self) -> bool:
        steps = self._counters["steps"]
        return steps % self._settings.hessian_every == 0 and self._counters["estimated_at"] != steps

    @torch.no_grad()
    def update_hessian(self, batch_size: int) -> None:
        size = check_range("batch_size", batch_size, 1, 2**31 - 1)
        gradients, beta2 = self._gradients(), self._settings.beta2
        torch._foreach_mul_(self._hessian, beta2)
        torch._foreach_addcmul_(self._hessian, gradients, gradients, (1 - beta2) * size)
        self._counters["estimated_at"] = self._counters["steps"]

    def _move(self, gradients: list[Tensor], rate: float) -> None:
        if self.wants_hessian:
            raise RuntimeError("sophia: the Hessian estimate is due: call update_hessian before this step")
        super()._move(gradients, rate)

    def _direction(self) -> tuple[Tensor, ...]:
        below = torch._foreach_mul(self._hessian, self._settings.gamma)
        torch._foreach_clamp_min_(below, self._settings.epsilon)
        ratio = torch._foreach_div(self._momentum, below)
        torch._foreach_clamp_max_(ratio, 1.0)
        torch._foreach_clamp_min_(ratio, -1.0)
        return ratio


class FromTorch(Optimizer):
    """torch's Muon for the parameters named in `matrices`, its AdamW for the others; either may have none."""

    def __init__(self, parameters: Named, settings: Settings, matrices: Collection[str] = ()) -> None:
        super().__init__(parameters)
        self._parts: list[torch.optim.Optimizer] = []
        self._step_counts: list[Tensor] = []
        muon = [(name, parameter) for name, parameter in parameters if name in matrices]
        adamw = [(name, parameter) for name, parameter in parameters if name not in matrices]
        if muon:
            part = torch.optim.Muon(
                [parameter for _, parameter in muon],
                momentum=settings.beta1,
                weight_decay=settings.weight_decay,
                adjust_lr_fn="match_rms_adamw",
            )
            self._parts.append(part)
            for name, parameter in muon:
                buffer = torch.zeros_like(parameter.data)
                part.state[parameter] = {"momentum_buffer": buffer}
                self._buffers[f"{name}/muon_momentum"] = buffer
        if adamw:
            tensors = [parameter for _, parameter in adamw]
            fused = True if _fused_works(tensors) else None  # None: torch takes foreach where that works, else a loop
            part = torch.optim.AdamW(
                tensors,
                betas=(MUON_ADAMW_BETA1 if muon else settings.beta1, settings.beta2),
                eps=settings.epsilon,
                weight_decay=settings.weight_decay,
                fused=fused,
            )
            self._parts.append(part)
            for name, parameter in adamw:
                count = torch.zeros((), device=parameter.device if fused else "cpu", dtype=torch.float32)
                mean, square = torch.zeros_like(parameter.data), torch.zeros_like(parameter.data)
                part.state[parameter] = {"step": count, "exp_avg": mean, "exp_avg_sq": square}
                self._step_counts.append(count)
                self._buffers |= {f"{name}/mean": mean, f"{name}/square": square}

    def _move(self, gradients: list[Tensor], rate: float) -> None:
        with _NoBfloat16OnCPU():
            for part in self._parts:
                for group in part.param_groups:
                    group["lr"] = rate
                part.step()

    def load_state(self, state: Mapping[str, Tensor]) -> None:
        super().load_state(state)
        for count in self._step_counts:
            count.fill_(self._counters["steps"])


class _NoBfloat16OnCPU(TorchFunctionMode):
    """While it is on, `x.bfloat16()` of a tensor on the CPU is a copy of its own type."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is Tensor.bfloat16 and args[0].device.type == "cpu":
            return args[0].clone()
        return func(*args, **(kwargs or {}))


def _fused_works(parameters: Sequence[Tensor]) -> bool:
    """Whether torch has a fused AdamW for these; its one for Apple's GPU knows two types only."""
    return all(
        p.device.type in ("cpu", "cuda") or (p.device.type == "mps" and p.dtype in (torch.float32, torch.float16))
        for p in parameters
    )


def make_optimizer(
    kind: Kind,
    parameters: Named,
    *,
    weight_decay: float,
    beta1: float | None = None,
    beta2: float | None = None,
    epsilon: float | None = None,
    gamma: float = 0.04,
    hessian_every: int = 10,
    adamw_names: Collection[str] = (),
) -> Optimizer:
    """An optimizer of this kind over named parameters; None is the kind's default in the table above.

    gamma and hessian_every are Sophia's alone. Muon gives the parameters in `adamw_names` (embeddings) to AdamW, with
    all that are not matrices; the other kinds treat every parameter alike.
    """
    check_choice("kind", kind, get_args(Kind))
    _check_parameters(parameters, adamw_names)
    value = dict(DEFAULTS[kind])
    for field, given in (("beta1", beta1), ("beta2", beta2), ("epsilon", epsilon)):
        if given is not None and field not in value:
            raise ValueError(f"{field}={given!r}: must be None ({kind} has no {field})")
        if given is not None:
            value[field] = _fraction(field, given) if field != "epsilon" else _positive(field, given)
    settings = Settings(
        weight_decay=_positive("weight_decay", weight_decay, or_zero=True),
        gamma=_positive("gamma", gamma),
        hessian_every=check_range("hessian_every", hessian_every, 1, 2**31 - 1),
        **value,
    )
    if kind == "signum":
        return Signum(parameters, settings)
    if kind == "sophia":
        return Sophia(parameters, settings)
    if kind == "adamw":
        return FromTorch(parameters, settings)
    if not hasattr(torch.optim, "Muon"):
        raise ValueError(f"kind='muon': torch {torch.__version__} has none (2.9 or newer has); choose another kind")
    matrices = {name for name, parameter in parameters if parameter.ndim == 2 and name not in adamw_names}
    if not matrices:
        raise ValueError("kind='muon': must have a 2-D parameter that is not in adamw_names")
    return FromTorch(parameters, settings, matrices)


def clip_gradients(parameters: Iterable[Tensor], limit: float) -> float:
    """Scale all gradients so that their total norm is at most `limit` (0: leave them); returns the norm before.

    A norm that is not finite is returned and nothing is scaled: the caller decides.
    """
    limit = _positive("limit", limit, or_zero=True)
    parameters = list(parameters)
    total = nn.utils.get_total_norm([p.grad for p in parameters if p.grad is not None])
    norm = float(total)
    if 0 < limit < norm < math.inf:
        nn.utils.clip_grads_with_norm_(parameters, limit, total)
    return norm


def _check_parameters(parameters: Named, adamw_names: Collection[str]) -> None:
    names = [name for name, _ in parameters]
    if not names:
        raise ValueError("parameters=[]: must hold at least one named parameter")
    for name in names:
        if names.count(name) > 1:
            raise ValueError(f"parameters: the name {name!r} occurs twice; names must differ")
    if len({id(parameter) for _, parameter in parameters}) < len(names):
        raise ValueError("parameters: one parameter has two names; a shared parameter must be listed once")
    for name in sorted(adamw_names):
        check_choice("adamw_names", name, names)


def _positive(field: str, value: Any, *, or_zero: bool = False) -> float:
    """The value as a float; raises unless it is a finite number above 0, or 0 where that is allowed."""
    number = isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)
    if not number or value < 0 or (value == 0 and not or_zero):
        raise ValueError(f"{field}={value!r}: must be a finite number, {'0 or more' if or_zero else 'above 0'}")
    return float(value)


def _fraction(field: str, value: Any) -> float:
    """The value as a float; raises unless it is in [0, 1)."""
    if not isinstance(value, int | float) or isinstance(value, bool) or not 0 <= value < 1:
        raise ValueError(f"{field}={value!r}: must be a number from 0 up to, not including, 1")
    return float(value)
