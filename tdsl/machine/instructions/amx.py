"""The tile registers of Intel AMX: eight registers of 16 rows of 64 bytes, for products of such tiles.

    total[i, j] += sum of left[i, q, t] * right[q, j, t] over q = 0 .. 15 and the contiguous terms t

For each column, a row of `right` holds its terms t contiguously (the VNNI layout).
"""

from __future__ import annotations

from tdsl.machine.instructions.instruction import RegisterFile

ROWS = 16  # rows of a tile register
COUNT = 8  # tile registers
# The operand of ldtilecfg: palette 1; from byte 16 on the bytes per row of each tile, from byte 48 its rows.
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
    # restores the tile configuration of the caller; an empty one releases the tile registers
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
