"""AMX: eight registers of 16 rows of 64 bytes, and products of such tiles.

    total[i, j] += sum of left[i, q, t] * right[q, j, t] over q = 0 .. 15 and the neighbours t

A row of `right` has the terms t of a sum side by side for each of its columns.
"""

from __future__ import annotations

from tdsl.schedule.instructions.instruction import RegisterFile

ROWS = 16
COUNT = 8  # registers
# What ldtilecfg reads: palette 1, from byte 16 on the bytes of a row of each tile, from 48 on its rows.
_SHAPES = bytearray(64)
_SHAPES[0] = 1
for _tile in range(COUNT):
    _SHAPES[16 + 2 * _tile], _SHAPES[48 + _tile] = 64, ROWS

TILES = RegisterFile(
    name="amx",
    count=COUNT,
    load="call void @llvm.x86.tileloadd64(i8 {register}, ptr {pointer}, i64 {stride})",
    store="call void @llvm.x86.tilestored64(i8 {register}, ptr {pointer}, i64 {stride})",
    state=64,
    begin=(
        "call void @llvm.x86.sttilecfg(ptr {state})",
        "call void @llvm.x86.ldtilecfg(ptr @amx.shapes)",
    ),
    # the shapes of the caller, or none: that gives the tiles back to the system
    end=("call void @llvm.x86.ldtilecfg(ptr {state})",),
    declarations=(
        '@amx.shapes = internal constant [64 x i8] c"'
        + "".join(f"\\{byte:02x}" for byte in _SHAPES)
        + '", align 64',
        "declare void @llvm.x86.sttilecfg(ptr)",
        "declare void @llvm.x86.ldtilecfg(ptr)",
        "declare void @llvm.x86.tileloadd64(i8 immarg, ptr, i64)",
        "declare void @llvm.x86.tilestored64(i8 immarg, ptr, i64)",
    ),
)
