"""Caches are read from where Linux tells them, and guessed where it does not."""

from __future__ import annotations

from tdsl.machine.cpu import level
from tdsl.machine.cpu_caches import caches, describe
from tdsl.machine.model import CACHES, MemoryLevel


def tell(folder, **files):
    folder.mkdir(parents=True)
    for name, text in files.items():
        (folder / name).write_text(text + "\n")


def test_data_caches_have_the_number_of_threads_that_share_them(tmp_path):
    line = {"coherency_line_size": "128"}
    tell(tmp_path / "index0", level="1", type="Data", size="48K", shared_cpu_list="0,16", **line)
    tell(tmp_path / "index1", level="1", type="Instruction", size="32K", shared_cpu_list="0", **line)
    tell(tmp_path / "index3", level="3", type="Unified", size="36M", shared_cpu_list="0-31", **line)
    tell(tmp_path / "index2", level="2", type="Unified", size="2048K", shared_cpu_list="0,16", **line)
    (tmp_path / "uevent").write_text("")
    assert caches(str(tmp_path)) == (
        MemoryLevel("L1", 48 << 10, 128, 2),
        MemoryLevel("L2", 2 << 20, 128, 2),
        MemoryLevel("L3", 36 << 20, 128, 32),
    )


def test_a_system_that_does_not_tell_gets_small_caches(tmp_path):
    tell(tmp_path / "half" / "index0", level="1", type="Data", size="48K")
    assert caches(str(tmp_path / "half")) == CACHES
    assert caches(str(tmp_path / "none")) == CACHES
    tell(tmp_path / "odd" / "index0", level="one", type="Data", size="?", shared_cpu_list="0")
    assert caches(str(tmp_path / "odd")) == CACHES


def test_registers_are_the_nearest_level_and_memory_has_no_end():
    machines = {name: describe(level(name)) for name in ("sse2", "avx2", "avx512", "aarch64")}
    assert {n: (m.registers, m.vector_bytes) for n, m in machines.items()} == {
        "sse2": (16, 16), "avx2": (16, 32), "avx512": (32, 64), "aarch64": (32, 16),
    }  # fmt: skip
    first, *_, last = machines["avx2"].levels
    assert (first.name, first.bytes, first.managed) == ("registers", 512, True)
    assert (last.name, last.bytes, last.managed) == ("memory", None, True)
