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
from numba.core import config, types
from numba.extending import intrinsic

from pathmerge.kernels.compile import helper, inline

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
    """The sums of `rows` rows of the left factor times lanes·vectors columns of the right one, written over or added to
    (`onto`) what is there. Arguments: for each of the three matrices the address of the first number and the bytes from
    one row to the next; then how many numbers a sum has."""
    vector = ir.VectorType(_NUMBER, lanes)

    def build(context: Any, builder: Any, _signature: Any, args: Any) -> Any:
        left, left_step, right, right_step, out, out_step, depth = args

        def address(first: Any, step: Any, row: Any) -> Any:
            return builder.add(first, builder.mul(row, step))

        def pointer(place: Any, kind: Any) -> Any:
            return builder.inttoptr(place, kind.as_pointer())

        def load(place: Any, kind: Any) -> Any:
            found = builder.load(pointer(place, kind))
            found.align = 4
            return found

        parts = [_INTEGER(4 * lanes * part) for part in range(vectors)]
        lines = [address(left, left_step, _INTEGER(row)) for row in range(rows)]
        targets = [[builder.add(address(out, out_step, _INTEGER(row)), part) for part in parts] for row in range(rows)]
        zero = ir.Constant(vector, [0.0] * lanes)
        begun = [[load(place, vector) if onto else zero for place in row] for row in targets]
        before, loop, after = builder.block, builder.append_basic_block(), builder.append_basic_block()
        builder.branch(loop)
        builder.position_at_end(loop)
        k = builder.phi(_INTEGER)
        k.add_incoming(_INTEGER(0), before)
        sums = [[builder.phi(vector) for _ in parts] for _ in range(rows)]
        place = address(right, right_step, k)
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

    def typed(_typing: Any, a: Any, a_step: Any, b: Any, b_step: Any, out: Any, out_step: Any, depth: Any) -> Any:
        return types.void(*[types.int64] * 7), build

    return intrinsic(typed)


def _matrix(_typing: Any, matrix: Any) -> Any:
    def build(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        found = context.make_array(matrix)(context, builder, args[0])
        parts = [builder.ptrtoint(found.data, _INTEGER), builder.extract_value(found.strides, 0)]
        return context.make_tuple(builder, signature.return_type, parts)

    return types.UniTuple(types.int64, 2)(matrix), build


_place: Any = intrinsic(_matrix)
"""The address of a matrix and the bytes from one row to the next: with them instead of arrays, whose types differ by
how they lie in memory, tiles are compiled once and not seven times."""


def _product(count: int, tiles: Tiles, onto: bool) -> Any:
    """Rows low..high-1 from column j on, `count` at a time, cut into tiles: as many of the first as fit, and so on."""
    if not tiles:
        return helper(lambda a, a_step, low, high, depth, b, b_step, columns, out, out_step, j: None)
    tile, width = _tile(count, *tiles[0], onto), tiles[0][0] * tiles[0][1]
    smaller = _product(count, tiles[1:], onto)

    @helper
    def product(a, a_step, low, high, depth, b, b_step, columns, out, out_step, j):
        while j + width <= columns:
            for i in range(low, high, count):
                tile(a + i * a_step, a_step, b + 4 * j, b_step, out + i * out_step + 4 * j, out_step, depth)
            j += width
        smaller(a, a_step, low, high, depth, b, b_step, columns, out, out_step, j)

    return product


def _products(tiles: dict[int, Tiles], onto: bool) -> Any:
    fours, twos, ones = (_product(count, tiles[count], onto) for count in (ROWS, 2, 1))

    @helper
    def by_address(a, a_step, rows, depth, b, b_step, columns, out, out_step):
        none = np.int64(0)
        left = rows % ROWS
        whole = rows - left if left <= 2 else rows
        fours(a, a_step, none, whole, depth, b, b_step, columns, out, out_step, none)
        if left == 1:
            ones(a, a_step, whole, rows, depth, b, b_step, columns, out, out_step, none)
        elif left == 2:
            twos(a, a_step, whole, rows, depth, b, b_step, columns, out, out_step, none)

    @inline
    def product(a, rows, depth, b, out, begin):
        left, left_step = _place(a)
        right, right_step = _place(b)
        to, to_step = _place(out)
        to += begin * to_step
        rows, depth, columns = np.int64(rows), np.int64(depth), np.int64(b.shape[1])
        by_address(left, left_step, rows, depth, right, right_step, columns, to, to_step)

    return product


def products(tiles: dict[int, Tiles]) -> tuple[Any, Any]:
    """`multiply` and `multiply_onto` with these tiles."""
    return _products(tiles, False), _products(tiles, True)


def has_long_registers() -> bool:
    """Whether kernels may use registers of 16 numbers: what numba compiles for has AVX-512 (NUMBA_CPU_NAME and
    NUMBA_CPU_FEATURES can ask for less than there is)."""
    host = binding.get_host_cpu_features()
    asked = config.CPU_FEATURES or ("" if config.CPU_NAME else host.flatten())  # pyright: ignore[reportAttributeAccessIssue]
    return "+avx512f" in asked.split(",")


multiply, multiply_onto = products(LONG if has_long_registers() else SHORT)
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
