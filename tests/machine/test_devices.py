"""Descriptions of GPUs agree with CUDA's own table of architectures, and figures with each other."""

from __future__ import annotations

import importlib.util
import math
import re
from pathlib import Path

import pytest

import tdsl as td
from tdsl.errors import DefinitionError
from tdsl.machine.devices import FOLDER, describe_gpu, gpus
from tdsl.machine.gpu import FEATURES
from tdsl.machine.instructions.tensor_cores import LOADS, MMAS

TRAITS = Path("include", "cccl", "cuda", "__device", "arch_traits.h")
RESERVED = "reserved_shared_memory_per_block"
ARCHS = tuple(gpus())


@pytest.mark.parametrize("arch", ARCHS)
def test_every_architecture_has_a_device(arch: str) -> None:
    machine, target = describe_gpu(arch), td.Target("cuda", arch=arch)
    assert machine.arch == arch and target.machine() == machine
    assert target.capacity("registers") == 64 * 1024 * 4
    bandwidth = machine.level("global").bytes_per_second(machine.threads)
    l2 = machine.level("L2").bytes_per_second(machine.threads)
    operations = (machine.rate("vector") or 0) * machine.threads
    assert bandwidth is not None and l2 is not None
    assert 3 < operations / bandwidth < 150  # f32 operations a byte
    assert bandwidth < l2 < (machine.level("shared").bytes_per_second(machine.threads) or 0)


@pytest.mark.parametrize("arch", ARCHS)
def test_rates_are_whole_operations_a_clock(arch: str) -> None:
    machine = describe_gpu(arch)
    gpu = machine.gpu
    assert gpu is not None
    for rate in machine.rates:
        per_clock = rate.per_second / gpu.clock
        assert any(abs(per_clock / (k << n) - 1) < 0.13 for n in range(16) for k in (1, 3))


@pytest.mark.parametrize("arch", ARCHS)
def test_limits_are_those_of_the_header_of_cuda(arch: str) -> None:
    spec = importlib.util.find_spec("nvidia.cu13")
    files = [Path(x) / TRAITS for x in spec.submodule_search_locations or ()] if spec else []
    text = next((x.read_text() for x in files if x.exists()), "")
    if not text:
        pytest.skip("without the headers of CUDA 13")
    gpu, device = describe_gpu(arch).gpu, describe_gpu(arch)
    assert gpu is not None
    part = re.search(rf"arch_id::{arch.rstrip('a')}>\(\) noexcept\n{{(.*?)\n}}", text, re.S)
    assert part is not None
    figures = dict(re.findall(r"__traits\.(\w+) *= (.*?);", part[1], re.S))
    assert eval(figures["max_shared_memory_per_multiprocessor"]) == gpu.shared
    assert int(figures["max_blocks_per_multiprocessor"]) == gpu.blocks
    assert int(figures["max_threads_per_multiprocessor"]) == 32 * gpu.warps
    assert device.level("shared").bytes == gpu.shared - gpu.shared_reserved
    assert gpu.shared_reserved == (1024 if gpu.arch != "sm_75" else 0)


def test_features_begin_with_a_capability() -> None:
    features = {arch: describe_gpu(arch).features for arch in ARCHS}
    assert features["sm_75"] == {"ldmatrix"}
    assert "cp.async" in features["sm_87"] and "f8" not in features["sm_87"]
    assert "f8" in features["sm_89"] and "tma" not in features["sm_89"]
    assert {arch for arch in ARCHS if "wgmma" in features[arch]} == {"sm_90a"}
    assert features["sm_100a"] == set(FEATURES) - {"wgmma", "block_scale"}
    assert features["sm_120"] == set(FEATURES) - {"wgmma", "tcgen05", "block_scale"}
    assert features["sm_120a"] == features["sm_120"] | {"block_scale"}


@pytest.mark.parametrize(
    "name, archs",
    [
        ("mma_m16n8k16_f16_f16", set(ARCHS) - {"sm_75"}),
        ("mma_m16n8k32_f8e4m3_f8e5m2", {"sm_89", "sm_90", "sm_90a", "sm_100a", "sm_120", "sm_120a"}),
        ("mma_m16n8k32_mx_f8e4m3_f8e5m2", {"sm_120a"}),
        ("wgmma_m64n128k16_f16_mk_kn", {"sm_90a"}),
        ("tcgen05_m128n128k16_f16_mk_kn", {"sm_100a"}),
    ],
)
def test_instructions_are_those_of_an_architecture(name: str, archs: set[str]) -> None:
    assert {arch for arch in ARCHS if describe_gpu(arch).supports(name)} == archs


def test_schedules_are_made_for_the_gpu_that_the_user_describes(tmp_path, monkeypatch) -> None:
    text = (FOLDER / "l40.json").read_text()
    (tmp_path / "mine.json").write_text(text.replace('"threads": 142', '"threads": 46'))
    monkeypatch.setenv("TDSL_GPU", str(tmp_path / "mine.json"))
    assert td.Target("cuda", arch="sm_89").machine().threads == 46
    assert "f8" in td.Target("cuda", arch="sm_89").machine().features
    assert td.Target("cuda", arch="sm_80").machine() == describe_gpu("sm_80")
    monkeypatch.setenv("TDSL_GPU", "")
    assert td.Target("cuda", arch="sm_89").machine() == describe_gpu("sm_89")


@pytest.mark.parametrize(
    "text, reason",
    [
        (None, "cannot be read: No such file"),
        ("{}", 'does not describe a machine: there is no "schema"'),
        ((FOLDER / "zen4.json").read_text(), "describes no GPU"),
    ],
)
def test_a_file_that_describes_no_gpu_is_refused(text, reason, tmp_path, monkeypatch) -> None:
    if text is not None:
        (tmp_path / "mine.json").write_text(text)
    monkeypatch.setenv("TDSL_GPU", str(tmp_path / "mine.json"))
    with pytest.raises(td.TargetError, match=f"TDSL_GPU: .*mine.json {reason}") as caught:
        td.Target("cuda", arch="sm_89").machine()
    assert "described" in caught.value.hint


def test_a_cpu_has_no_instruction_of_a_gpu() -> None:
    cpu = td.Target("cpu").machine()
    assert cpu.arch == "" and cpu.gpu is None
    assert not any(cpu.supports(row.name) for row in (*MMAS, *LOADS))
    with pytest.raises(DefinitionError, match=r"(?s)no instruction 'mma_m16n8'.*did you mean"):
        cpu.supports("mma_m16n8")


def test_levels_have_names_in_any_case() -> None:
    target = td.Target("cpu")
    assert target.capacity("l2") == target.capacity("L2")
    assert target.capacity("memory") == math.inf
    with pytest.raises(td.TargetError, match=r"(?s)no level 'shared'.*registers, L1"):
        target.capacity("shared")
