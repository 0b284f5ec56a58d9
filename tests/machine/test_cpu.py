"""The description of the CPU matches what LLVM can do with it."""

from __future__ import annotations

import platform

import llvmlite.binding as llvm
import pytest

from tdsl.codegen.cpu.target_machine import target_machine
from tdsl.errors import TargetError
from tdsl.machine.cpu import cpu_name, host, level, vector_bytes

ADD = """
define void @add(ptr %a) {
  %x = load <16 x float>, ptr %a, align 4
  %y = fadd <16 x float> %x, %x
  store <16 x float> %y, ptr %a, align 4
  ret void
}
"""


def assembly(target):
    return target_machine(target).emit_assembly(llvm.parse_assembly(ADD))


def test_host_is_this_machine():
    target = host()
    assert target is host()
    assert target.architecture == {"AMD64": "x86_64"}.get(platform.machine(), platform.machine())
    assert target.vector_bytes in (16, 32, 64)
    listed = {part[1:] for part in target.features.split(",") if part.startswith("+")}
    assert listed == target.has


def test_target_machine_is_created_once():
    assert target_machine(host()) is target_machine(host())


@pytest.mark.parametrize(
    "name, register, count",
    [("sse2", "%xmm", 4), ("sse4", "%xmm", 4), ("avx2", "%ymm", 2), ("avx512", "%zmm", 1)],
)
def test_level_uses_the_registers_it_has(name, register, count):
    text = assembly(level(name))
    assert text.count("addps") == count
    assert register in text
    assert level(name).vector_bytes * count == 64


def test_other_architecture_can_be_looked_at():
    text = assembly(level("aarch64"))
    assert text.count("fadd\tv") == 4
    assert level("aarch64").vector_bytes == 16


def test_wrong_level_names_the_right_ones():
    with pytest.raises(TargetError, match="did you mean 'avx512'"):
        level("avx-512")


@pytest.mark.parametrize(
    "features, name",
    [
        ("amx-bf16 avx512f avx512bf16 avx512vbmi2 avx512bw avx512vl", "sapphirerapids"),
        ("avx512f avx512bw avx512vl avx512vnni avx2 avx", "cascadelake"),
        ("avx512f avx512bw avx512vl avx512bf16 vaes clzero clwb avx2", "znver4"),
        ("avx avx2 fma adx clzero clwb", "znver2"),
        ("avx avx2 fma", "haswell"),
        ("sse2", "x86-64"),
    ],
)
def test_cpu_is_named_by_its_features(features, name):
    assert cpu_name(frozenset(features.split())) == name


def test_vectors_of_avx512f_alone_stay_narrow():
    assert vector_bytes(frozenset({"avx2", "avx512f"})) == 32
