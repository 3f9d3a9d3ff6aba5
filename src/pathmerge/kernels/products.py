"""Products of small matrices inside a kernel: a pass of some thirty rows stays in the cache from one step to the next,
which it cannot where each step is a library's product over thousands of rows.

A tile of ROWS rows and some vector registers of columns is summed in registers, written in LLVM's own language: of
loops in Python LLVM makes code that stores every partial sum. Rows are multiplied by fours, one or two that are left
in tiles of their own (29 rows, as most inputs of 32 tokens have: a tenth less time than 32); three that are left as if
they were four, so matrices have room for a row more than count, which holds anything. Columns are a multiple of eight.
Each number is summed in the same order whatever the tile, so the result depends neither on the processor's registers
nor on how many rows there are.

A tile reads a few columns of the right factor from top to bottom. Where its rows are a round number of bytes apart, as
192 numbers are, these places share a quarter of the cache's sets and drive each other out: 55 instead of 90 GFLOP/s.
So large right factors have rows a little further apart than they are long (`apart`).
"""

from __future__ import annotations

from typing import Any

import numpy as np
from llvmlite import binding, ir
from numba.core import types
from numba.extending import intrinsic

from pathmerge.kernels.compile import helper

ROWS = 4
LANES = 8
"""Columns come in multiples of it: the numbers in the vector register that every processor of today has."""

# By rows, the tiles that columns are cut into, the largest first: numbers in a register, and registers side by side. A
# multiplication takes four cycles and two begin in each, so a tile of eight sums keeps a processor busy only if nothing
# is ever late; one of twelve, all that AVX2's sixteen registers have room for, is a sixth faster. Processors with
# AVX-512 have 32 registers of 16 numbers; four side by side keep both of their multipliers busy even where every load
# touches two lines of the cache.
Tiles = tuple[tuple[int, int], ...]
SHORT: dict[int, Tiles] = {
    ROWS: ((LANES, 3), (LANES, 2), (LANES, 1)),
    2: ((LANES, 4), (LANES, 2), (LANES, 1)),
    1: ((LANES, 8), (LANES, 4), (LANES, 2), (LANES, 1)),
}
LONG: dict[int, Tiles] = {
    ROWS: (*((2 * LANES, registers) for registers in (4, 3, 2, 1)), (LANES, 1)),
    2: (*((2 * LANES, registers) for registers in (4, 2, 1)), (LANES, 1)),
    1: (*((2 * LANES, registers) for registers in (8, 4, 2, 1)), (LANES, 1)),
}

LINE = 64
"""Bytes in a line of the cache."""

_NUMBER = ir.FloatType()
_INTEGER = ir.IntType(64)
_FUSED = ("contract",)


def _tile(rows: int, lanes: int, vectors: int, onto: bool) -> Any:
    """out[c:c+rows, j:j+w] = a[i:i+rows, :depth] @ b[:depth, j:j+w], or the sum of both (`onto`); w = lanes·vectors."""
    vector = ir.VectorType(_NUMBER, lanes)

    def build(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        kinds = dict(zip("abc", (signature.args[at] for at in (0, 2, 4)), strict=True))
        arrays = {
            name: context.make_array(kinds[name])(context, builder, value)
            for name, value in zip("abc", (args[0], args[2], args[4]), strict=True)
        }
        i, j, c, depth = args[1], args[3], args[5], args[6]

        def address(name: str, row: Any, column: Any) -> Any:
            down = builder.mul(row, builder.extract_value(arrays[name].strides, 0))
            along = builder.mul(column, _INTEGER(4))
            return builder.add(builder.ptrtoint(arrays[name].data, _INTEGER), builder.add(down, along))

        def pointer(place: Any, kind: Any) -> Any:
            return builder.inttoptr(place, kind.as_pointer())

        def load(place: Any, kind: Any) -> Any:
            found = builder.load(pointer(place, kind))
            found.align = 4
            return found

        parts = [_INTEGER(4 * lanes * part) for part in range(vectors)]
        lines = [address("a", builder.add(i, _INTEGER(row)), _INTEGER(0)) for row in range(rows)]
        targets = [
            [builder.add(address("c", builder.add(c, _INTEGER(row)), j), part) for part in parts] for row in range(rows)
        ]
        zero = ir.Constant(vector, [0.0] * lanes)
        begun = [[load(place, vector) if onto else zero for place in row] for row in targets]
        before, loop, after = builder.block, builder.append_basic_block(), builder.append_basic_block()
        builder.branch(loop)
        builder.position_at_end(loop)
        k = builder.phi(_INTEGER)
        k.add_incoming(_INTEGER(0), before)
        sums = [[builder.phi(vector) for _ in parts] for _ in range(rows)]
        place = address("b", k, j)
        columns = [load(builder.add(place, part), vector) for part in parts]
        nowhere = ir.Constant(vector, ir.Undefined)
        everywhere = ir.Constant(ir.VectorType(ir.IntType(32), lanes), [0] * lanes)
        for line, row, start in zip(lines, sums, begun, strict=True):
            number = load(builder.add(line, builder.mul(k, _INTEGER(4))), _NUMBER)
            single = builder.insert_element(nowhere, number, ir.IntType(32)(0))
            factor = builder.shuffle_vector(single, nowhere, everywhere)
            for at, (total, column) in enumerate(zip(row, columns, strict=True)):
                more = builder.fadd(builder.fmul(factor, column, flags=_FUSED), total, flags=_FUSED)
                total.add_incoming(start[at], before)
                total.add_incoming(more, loop)
                row[at] = more
        following = builder.add(k, _INTEGER(1))
        k.add_incoming(following, loop)
        builder.cbranch(builder.icmp_signed("<", following, depth), loop, after)
        builder.position_at_end(after)
        for row, places in zip(sums, targets, strict=True):
            for total, where in zip(row, places, strict=True):
                builder.store(total, pointer(where, vector)).align = 4
        return context.get_dummy_value()

    def typed(_typing: Any, a: Any, i: Any, b: Any, j: Any, out: Any, c: Any, depth: Any) -> Any:
        return types.void(a, types.intp, b, types.intp, out, types.intp, types.intp), build

    return intrinsic(typed)


def _product(count: int, tiles: Tiles, onto: bool) -> Any:
    """Rows low..high-1 from column j on, `count` at a time, cut into tiles: as many of the first as fit, and so on."""
    if not tiles:
        return helper(lambda a, low, high, depth, b, out, begin, j: None)
    tile, width = _tile(count, *tiles[0], onto), tiles[0][0] * tiles[0][1]
    smaller = _product(count, tiles[1:], onto)

    @helper
    def product(a, low, high, depth, b, out, begin, j):
        while j + width <= b.shape[1]:
            for i in range(low, high, count):
                tile(a, i, b, j, out, begin + i, depth)
            j += width
        smaller(a, low, high, depth, b, out, begin, j)

    return product


def _products(tiles: dict[int, Tiles], onto: bool) -> Any:
    fours, twos, ones = (_product(count, tiles[count], onto) for count in (ROWS, 2, 1))

    @helper
    def product(a, rows, depth, b, out, begin):
        left = rows % ROWS
        whole = rows - left if left <= 2 else rows
        fours(a, 0, whole, depth, b, out, begin, 0)
        if left == 1:
            ones(a, whole, rows, depth, b, out, begin, 0)
        elif left == 2:
            twos(a, whole, rows, depth, b, out, begin, 0)

    return product


def products(tiles: dict[int, Tiles]) -> tuple[Any, Any]:
    """`multiply` and `multiply_onto` with these tiles."""
    return _products(tiles, False), _products(tiles, True)


multiply, multiply_onto = products(LONG if binding.get_host_cpu_features().get("avx512f") else SHORT)
"""out[begin : begin + rows] = a[:rows, :depth] @ b[:depth], and the same added to what is there; float32, depth at
least 1, numbers of a row side by side."""


def apart(matrices: np.ndarray) -> np.ndarray:
    """The same float32 matrices (... x rows x columns), rows an odd number of vector registers apart, from the
    beginning of a line on: a column meets every set of the cache, and no register is loaded from two lines."""
    *more, columns = matrices.shape
    registers = -(-columns // LANES)
    wide = LANES * (registers + 1 + registers % 2)
    size = int(np.prod(more)) * wide
    room = np.zeros(size + LINE // 4, np.float32)
    begin = -room.ctypes.data % LINE // 4
    made = room[begin : begin + size].reshape(*more, wide)[..., :columns]
    made[...] = matrices
    return made
