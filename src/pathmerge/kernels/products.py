"""Products of small matrices inside a kernel: a pass of some thirty rows stays in the cache from one step to the next,
which it cannot where each step is a library's product over thousands of rows.

A tile of ROWS rows and one or two vector registers of columns is summed in registers, written in LLVM's own language:
of loops in Python LLVM makes code that stores every partial sum. Rows are multiplied by fours, so matrices have room
for up to three rows more than count, which hold anything; columns are a multiple of eight.
"""

from __future__ import annotations

from typing import Any

from llvmlite import ir
from numba.core import types
from numba.extending import intrinsic

from pathmerge.kernels.compile import helper

ROWS = 4
LANES = 8
"""The numbers in a vector register."""

_NUMBER = ir.FloatType()
_INTEGER = ir.IntType(64)
_VECTOR = ir.VectorType(_NUMBER, LANES)
_FUSED = ("contract",)


def _tile(vectors: int, onto: bool) -> Any:
    """out[c:c+ROWS, j:j+8·vectors] = a[i:i+ROWS, :depth] @ b[:depth, j:j+8·vectors], or the sum of both (`onto`)."""

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

        parts = [_INTEGER(4 * LANES * part) for part in range(vectors)]
        lines = [address("a", builder.add(i, _INTEGER(row)), _INTEGER(0)) for row in range(ROWS)]
        targets = [
            [builder.add(address("c", builder.add(c, _INTEGER(row)), j), part) for part in parts] for row in range(ROWS)
        ]
        zero = ir.Constant(_VECTOR, [0.0] * LANES)
        begun = [[load(place, _VECTOR) if onto else zero for place in row] for row in targets]
        before, loop, after = builder.block, builder.append_basic_block(), builder.append_basic_block()
        builder.branch(loop)
        builder.position_at_end(loop)
        k = builder.phi(_INTEGER)
        k.add_incoming(_INTEGER(0), before)
        sums = [[builder.phi(_VECTOR) for _ in parts] for _ in range(ROWS)]
        place = address("b", k, j)
        columns = [load(builder.add(place, part), _VECTOR) for part in parts]
        nowhere = ir.Constant(_VECTOR, ir.Undefined)
        everywhere = ir.Constant(ir.VectorType(ir.IntType(32), LANES), [0] * LANES)
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
                builder.store(total, pointer(where, _VECTOR)).align = 4
        return context.get_dummy_value()

    def typed(_typing: Any, a: Any, i: Any, b: Any, j: Any, out: Any, c: Any, depth: Any) -> Any:
        return types.void(a, types.intp, b, types.intp, out, types.intp, types.intp), build

    return intrinsic(typed)


_wide, _narrow = _tile(2, False), _tile(1, False)
_wide_onto, _narrow_onto = _tile(2, True), _tile(1, True)


@helper
def multiply(a, rows, depth, b, out, begin):
    """out[begin : begin + rows] = a[:rows, :depth] @ b[:depth]; float32, depth at least 1, numbers of a row side by
    side."""
    j = 0
    while j + 2 * LANES <= b.shape[1]:
        for i in range(0, rows, ROWS):
            _wide(a, i, b, j, out, begin + i, depth)
        j += 2 * LANES
    if j < b.shape[1]:
        for i in range(0, rows, ROWS):
            _narrow(a, i, b, j, out, begin + i, depth)


@helper
def multiply_onto(a, rows, depth, b, out, begin):
    """The same, added to what is there."""
    j = 0
    while j + 2 * LANES <= b.shape[1]:
        for i in range(0, rows, ROWS):
            _wide_onto(a, i, b, j, out, begin + i, depth)
        j += 2 * LANES
    if j < b.shape[1]:
        for i in range(0, rows, ROWS):
            _narrow_onto(a, i, b, j, out, begin + i, depth)
