"""What ptxas spills decides between default schedules: the first that spills nothing is taken."""

from dataclasses import replace

import pytest

import tdsl as td
from tdsl import pipeline
from tdsl.codegen.cuda import module
from tdsl.codegen.runtime.compile_limit import limit_error

pytest.importorskip("tvm", reason='pip install "tdsl[cuda]"')

i, a, f = td.vars("i"), td.Tensor("a", (1 << 16,), td.f32), td.Func("f")
f[i] = a[i] * 2


@pytest.fixture
def builds(monkeypatch):
    """The block sizes that are compiled, and a list of the largest one that spills nothing."""
    threads, complete, build = {255: 256, 191: 128, 127: 64}, pipeline.complete, module.build
    compiled = []

    def by_registers(state, machine):
        few = threads[machine.gpu.registers_per_thread] if machine.gpu else machine.block_threads
        return complete(state, replace(machine, block_threads=few))

    def spilling(launches, *args, **named):
        result = build(launches, *args, **named)
        compiled.append(result.kernels[0].block[0])
        spills = max(compiled[-1] - builds_without_spills[0], 0)
        return replace(result, kernels=(replace(result.kernels[0], spills=spills),))

    builds_without_spills = [256]
    monkeypatch.setenv("TDSL_CACHE", "0")
    monkeypatch.setattr(pipeline, "complete", by_registers)
    monkeypatch.setattr(module, "build", spilling)
    return compiled, builds_without_spills


@pytest.mark.parametrize("largest, tried", [(256, [256]), (128, [256, 128]), (64, [256, 128, 64])])
def test_candidates_are_compiled_until_one_spills_nothing(builds, largest, tried):
    compiled, builds[1][0] = builds[0], largest
    program = td.compile(f, target="cuda:sm_80")
    assert program.launch.kernels[0].block == (largest, 1, 1)
    assert compiled == tried
    for stage in ("scheduled", "final"):
        assert f"range(0, {largest}):  # threadIdx.x" in str(program.loops(stage))


def test_if_all_spill_the_least_is_taken(builds):
    builds[1][0] = 0
    assert td.compile(f, target="cuda:sm_80").launch.spills == 64


def test_schedules_by_hand_stay_as_they_are(builds):
    s = td.Schedule(f)
    block, thread = s[f].split(i, 512)
    s[f].bind(block, "blockIdx.x").bind(thread, "threadIdx.x")
    assert td.compile(s, target="cuda:sm_80").launch.kernels[0].block[0] == 512
    assert builds[0] == [512]


def test_equal_schedules_are_compiled_once(builds, monkeypatch):
    complete = pipeline.complete
    monkeypatch.setattr(
        pipeline,
        "complete",
        lambda s, m: complete(s, replace(m, gpu=replace(m.gpu, registers_per_thread=255))),
    )
    builds[1][0] = 0
    assert td.compile(f, target="cuda:sm_80").launch.spills == 256
    assert builds[0] == [256]


def test_a_candidate_on_which_the_compiler_does_not_end_is_given_up_for_the_next(builds, monkeypatch):
    build = module.build

    def stopped(launches, arch, *, unroll=True):
        if unroll and launches.launches[0].block[0] == 256:
            raise limit_error("NVRTC", "takes more than 30 s of processor time", "f_kernel")
        return build(launches, arch, unroll=unroll)

    monkeypatch.setattr(module, "build", stopped)
    with pytest.warns(td.CompileWarning, match=r"30 s .*'f_kernel'.* by a schedule for fewer registers"):
        assert td.compile(f, target="cuda:sm_80").launch.kernels[0].block == (128, 1, 1)
