"""The instructions of machine code, counted by kind, in all and in the main loop."""

import pytest

import tdsl as td
from tdsl.codegen.cuda import sass
from tdsl.codegen.cuda.sass import disassemble, instruction_mix

i, j, k = td.vars("i j k")

LOOPS = """
	.section	.text.first,"ax",@progbits
.L_x_0:
        /*0000*/                   LDS.U.128 R4, [R2] ;
        /*0010*/              @!P1 STG.E.U16 [R6.64], R0 ;
.L_x_1:
        /*0020*/                   HMMA.16816.F32 R0, R4, R5, R0 ;
        /*0030*/                   HFMA2.MMA R15, -RZ, RZ, 0, 0 ;
        /*0040*/               @P0 BRA `(.L_x_1) ;
        /*0050*/               @P2 BRA `(.L_x_0) ;
.L_x_2:
        /*0060*/                   BRA `(.L_x_2);
	.section	.text.second,"ax",@progbits
        /*0000*/                   LDGSTS.E.BYPASS.128 [R2], [R4.64] ;
        /*0010*/                   EXIT ;
"""


def test_the_main_loop_is_the_longest_innermost_one():
    first, second = instruction_mix(LOOPS)
    assert (first.kernel, first.total, second.kernel, second.total) == ("first", 7, "second", 2)
    assert first.loop == (("BRA", 1), ("HFMA2", 1), ("HMMA", 1))
    assert (first.count("LDS.16"), first.count("STG"), first.count("STG.2")) == (1, 1, 1)
    assert second.loop == ()
    assert str(second) == "second: 2 instructions"


def test_nothing_is_counted_in_nothing():
    assert instruction_mix("") == ()


def test_a_product_has_as_many_ffma_as_terms():
    pytest.importorskip("tvm", reason='pip install "tdsl[cuda]"')
    a, b, c = td.Tensor("a", (256, 256), td.f32), td.Tensor("b", (256, 256), td.f32), td.Func("c")
    c[i, j] = td.sum(a[i, k] * b[k, j], axis=k)
    launch = td.compile(c, target="cuda:sm_80").launch
    (mix,) = instruction_mix(disassemble(launch.code))
    (kernel,) = launch.kernels
    tiles = 256 * 256 // (kernel.grid[0] * kernel.grid[1] * kernel.block[0] * kernel.block[1])
    assert mix.count("FFMA", in_loop=True) % tiles == 0
    assert mix.count("LDS.16", in_loop=True) > 0
    assert mix.count("LDGSTS") == mix.count("LDGSTS.16") > 0


def test_machine_code_that_is_none_is_refused():
    pytest.importorskip("tvm", reason='pip install "tdsl[cuda]"')
    with pytest.raises(td.TargetError, match="nvdisasm refuses"):
        disassemble(b"nothing")


def test_the_package_of_the_disassembler_is_named(monkeypatch):
    def missing(_):
        raise sass.importlib.metadata.PackageNotFoundError

    monkeypatch.setattr(sass.importlib.metadata, "files", missing)
    sass._nvdisasm.cache_clear()
    with pytest.raises(td.TargetError, match="not installed") as error:
        disassemble(b"")
    sass._nvdisasm.cache_clear()
    assert "tdsl[cuda]" in str(error.value)
