"""Descriptions of GPUs agree with what compiled kernels are checked against."""

from __future__ import annotations

import pytest

import tdsl as td
from tdsl.codegen.gpu.limits import MOST_SHARED
from tdsl.machine.devices import describe_gpu
from tdsl.target import ARCHS


@pytest.mark.parametrize("arch", ARCHS)
def test_every_architecture_has_a_device(arch: str) -> None:
    machine, target = describe_gpu(arch), td.Target("cuda", arch=arch)
    assert target.capacity("shared") == MOST_SHARED[arch]
    assert target.capacity("registers") == 64 * 1024 * 4
    bandwidth = machine.level("global").bytes_per_second(machine.threads)
    operations = (machine.rate("vector") or 0) * machine.threads
    assert bandwidth is not None
    assert 3 < operations / bandwidth < 150  # f32 operations a byte


def test_levels_have_names_in_any_case() -> None:
    target = td.Target("cpu")
    assert target.capacity("l2") == target.capacity("L2")
    assert target.capacity("memory") is None
    with pytest.raises(td.TargetError, match=r"(?s)no level 'shared'.*registers, L1"):
        target.capacity("shared")
