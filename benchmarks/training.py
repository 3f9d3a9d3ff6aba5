"""Training speed of the paper's model: .venv/bin/python benchmarks/training.py

Batch 256, two threads, the sizes of SPEC section 8. Prints examples/s, the executed GFLOP/s against the matmul peak
measured in the same run, and the ratios to a plain `nn.Module` of the same model, to `torch.nn.TransformerEncoder` of
the same size, and to the published code's figures (another machine of this kind: two cores, AVX2, 127 GFLOP/s).

The three programs take turns, and the median of the rounds counts: machines are shared and noisy.
`--avx2` measures with the vector instructions of the published figures' machine.
"""

from __future__ import annotations

import argparse
import os
import statistics
import time
from collections.abc import Callable

from processor import only_avx2

SIZES = ((32, 8, 1108), (64, 8, 332), (98, 8, 89), (128, 6, 67))
BATCH = 256
THREADS = 2


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--avx2", action="store_true", help="no wider instructions than AVX2")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--sizes", type=int, nargs="*", default=[size for size, _, _ in SIZES])
    options = parser.parse_args()
    if options.avx2:
        only_avx2()

    import torch

    print(f"torch {torch.__version__}, {torch.backends.cpu.get_cpu_capability()}, {os.cpu_count()} cores")
    print("N/layers  examples/s  GFLOP/s executed  of peak  GFLOP/example  x plain  x encoder  x published")
    for size, layers, published in SIZES:
        if size not in options.sizes:
            continue
        peak = matmul_peak()
        programs = {"ours": ours(size, layers), "plain": plain(size, layers), "encoder": encoder(size, layers)}
        speed: dict[str, list[float]] = {name: [] for name in programs}
        for step in programs.values():
            step()
        for _ in range(options.rounds):
            for name, step in programs.items():
                time.sleep(0.5)  # the threads of the program before spin for a while after their last work
                step()
                steps, begin = 0, time.perf_counter()
                while steps < 2 or time.perf_counter() - begin < 2.0:
                    step()
                    steps += 1
                speed[name].append(BATCH * steps / (time.perf_counter() - begin))
        peak = max(peak, matmul_peak())
        middle = {name: statistics.median(values) for name, values in speed.items()}
        work = executed_flops(size, layers) / BATCH
        rate = middle["ours"] * work / 1e9
        print(
            f"{size:>4}/{layers}  {middle['ours']:>11,.0f}  {rate:>16.0f}  {rate / peak:>7.0%}  {work / 1e9:>13.4f}"
            f"  {middle['ours'] / middle['plain']:>7.2f}  {middle['ours'] / middle['encoder']:>9.2f}"
            f"  {middle['ours'] / published:>11.2f}    (peak {peak:.0f} GFLOP/s)",
            flush=True,
        )


def matmul_peak() -> float:
    """GFLOP/s of a large product on all threads."""
    import torch

    torch.set_num_threads(THREADS)
    a = torch.randn(2048, 2048)
    best = 0.0
    for _ in range(8):
        begin = time.perf_counter()
        _ = a @ a
        best = max(best, 2 * 2048**3 / (time.perf_counter() - begin) / 1e9)
    return best


def ours(size: int, layers: int, threads: int = THREADS) -> Callable[[], None]:
    """A step of the training loop: gradients and the optimizer, the batches made beforehand."""
    import torch

    import pathmerge as pm
    from pathmerge.parallel import Workers
    from pathmerge.training.gradients import add_gradients, make_task
    from pathmerge.training.optimizers import make_optimizer

    model = pm.OneHot(input_size=size, layers=layers).build()
    optimizer = make_optimizer("signum", list(model.named_parameters()), weight_decay=0.1)
    batches = [pm.Balanced(input_size=size).sample(BATCH, seed=1, first=BATCH * i) for i in range(8)]
    turn = 0

    workers = Workers(threads)

    def step() -> None:
        nonlocal turn
        turn += 1
        torch.set_num_threads(1)
        optimizer.zero_grad()
        add_gradients(model, make_task(model, [batches[turn % 8]]), workers, kind="label", total=BATCH)
        for parameter in model.parameters():
            if parameter.grad is None:
                parameter.grad = parameter.detach().new_zeros(parameter.shape)
        optimizer.step(1e-5)

    workers.__enter__()  # kept for the whole run, as training keeps it
    return step


def executed_flops(size: int, layers: int) -> float:
    """FLOPs of matrix products in one step, counted as they are dispatched."""
    from typing import Any

    from torch.utils._python_dispatch import TorchDispatchMode

    class Count(TorchDispatchMode):
        total = 0.0

        def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            name = func.overloadpacket.__name__.rstrip("_")
            if name in ("mm", "bmm", "addmm", "baddbmm"):
                left, right = args[-2:]
                self.total += 2 * left.numel() * right.shape[-1]
            return func(*args, **(kwargs or {}))

    step = ours(size, layers, threads=1)
    with Count() as counter:
        for _ in range(8):
            step()
    return counter.total / 8


def plain(size: int, layers: int) -> Callable[[], None]:
    """The same model as one would write it first: every row, padding too, separate q, k, v, o, autograd."""
    import torch
    from torch import Tensor, nn

    width = (size - 5) // 3 + 5 + 16 + size
    vocabulary = (size - 5) // 3 + 5

    class Layer(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.ln1, self.ln2 = nn.LayerNorm(width), nn.LayerNorm(width)
            self.q, self.k, self.v, self.o, self.ff1, self.ff2 = (nn.Linear(width, width) for _ in range(6))

        def forward(self, x: Tensor, mask: Tensor) -> Tensor:
            h = self.ln1(x)
            scores = self.q(h) @ self.k(h).transpose(1, 2) / width**0.5
            x = x + self.o(torch.softmax(scores.masked_fill(mask, -torch.inf), -1) @ self.v(h))
            return x + self.ff2(torch.relu(self.ff1(self.ln2(x))))

    stack = nn.ModuleList(Layer() for _ in range(layers))
    return _peer(size, width, vocabulary, stack, lambda x, pad: _through(stack, x, pad[:, None, :]))


def encoder(size: int, layers: int) -> Callable[[], None]:
    """torch.nn.TransformerEncoder of the same size."""
    from torch import nn

    width = (size - 5) // 3 + 5 + 16 + size
    layer = nn.TransformerEncoderLayer(width, 1, width, dropout=0.0, norm_first=True, batch_first=True)
    stack = nn.TransformerEncoder(layer, layers, enable_nested_tensor=False)
    return _peer(size, width, (size - 5) // 3 + 5, stack, lambda x, pad: stack(x, src_key_padding_mask=pad))


def _through(stack: object, x: object, mask: object) -> object:
    for layer in stack:  # pyright: ignore[reportGeneralTypeIssues]
        x = layer(x, mask)
    return x


def _peer(size: int, width: int, vocabulary: int, stack: object, apply: Callable[..., object]) -> Callable[[], None]:
    import torch
    from torch import nn

    import pathmerge as pm

    norm = nn.LayerNorm(width)
    parameters = [*stack.parameters(), *norm.parameters()]  # pyright: ignore[reportAttributeAccessIssue]
    momentum = [torch.zeros_like(p) for p in parameters]
    batches = [pm.Balanced(input_size=size).sample(BATCH, seed=1, first=BATCH * i) for i in range(8)]
    turn = 0

    def step() -> None:
        nonlocal turn
        turn += 1
        torch.set_num_threads(THREADS)
        batch = batches[turn % 8]
        tokens, label = torch.from_numpy(batch.tokens), torch.from_numpy(batch.label)
        x = torch.zeros(BATCH, size, width)
        x.scatter_(2, tokens[:, :, None], 1.0)
        x[:, torch.arange(size), width - size + torch.arange(size)] = 1.0
        for parameter in parameters:
            parameter.grad = None
        out = apply(x, tokens == vocabulary - 2)
        logits = norm(out[:, -1])[:, :vocabulary]  # pyright: ignore[reportIndexIssue]
        nn.functional.cross_entropy(logits, label).backward()
        with torch.no_grad():
            for parameter, m in zip(parameters, momentum, strict=True):
                m.mul_(0.965).add_(parameter.grad, alpha=0.035)  # pyright: ignore[reportArgumentType]
                parameter.mul_(1 - 1e-6).add_(m.sign(), alpha=-1e-5)

    return step


if __name__ == "__main__":
    main()
