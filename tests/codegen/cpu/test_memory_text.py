"""Memory that kernels give back is there for those that ask for about as much, and for one at a time."""

from __future__ import annotations

import ctypes
import sys
import threading
from collections.abc import Callable

import pytest

from tdsl.codegen.cpu import jit, memory_text
from tdsl.machine.cpu import host

MIB = 1 << 20
LEAST, MOST = memory_text.CACHED_SIZES


class Memory:
    """The functions by themselves, on a C library that counts what it has given."""

    def __init__(self, platform: str = sys.platform) -> None:
        self.blocks: dict[int, ctypes.Array[ctypes.c_char]] = {}
        self.advised: list[tuple[int, int]] = []
        functions = {
            "test_malloc": ctypes.CFUNCTYPE(ctypes.c_void_p, ctypes.c_int64)(self._malloc),
            "test_free": ctypes.CFUNCTYPE(None, ctypes.c_void_p)(self._free),
            "test_madvise": ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_void_p, ctypes.c_int64, ctypes.c_int)(
                self._advise
            ),
        }
        self._functions = functions
        text = memory_text.allocator_text(platform)
        for name in ("malloc", "free", "madvise"):
            text = text.replace(f"@{name}(", f"@test_{name}(")
        imports = {n: ctypes.cast(f, ctypes.c_void_p).value or 0 for n, f in functions.items()}
        code = jit.load(jit.emit_object(text, host()), ["tdsl_malloc", "tdsl_free"], imports)
        self._code = code
        address = code.address
        self.take = ctypes.CFUNCTYPE(ctypes.c_void_p, ctypes.c_int64)(address("tdsl_malloc"))
        self.give = ctypes.CFUNCTYPE(None, ctypes.c_void_p)(address("tdsl_free"))

    def _malloc(self, size: int) -> int:
        memory = ctypes.create_string_buffer(size)
        self.blocks[ctypes.addressof(memory)] = memory
        return ctypes.addressof(memory)

    def _free(self, pointer: int) -> None:
        del self.blocks[pointer]

    def _advise(self, pointer: int, size: int, advice: int) -> int:
        self.advised.append((pointer, size))
        return 0


@pytest.fixture
def memory() -> Memory:
    return Memory()


@pytest.mark.parametrize("size", [LEAST, MIB, MOST])
def test_a_block_given_back_is_given_again(memory: Memory, size: int) -> None:
    first = memory.take(size)
    memory.give(first)
    assert memory.take(size) == first
    assert memory.take(size) != first
    assert len(memory.blocks) == 2


@pytest.mark.parametrize(
    "size, same", [(MIB, True), (MIB - 1, True), (MIB // 2, True), (MIB // 2 - 1, False), (MIB + 1, False)]
)  # fmt: skip
def test_a_cached_block_serves_similar_sizes_only(memory: Memory, size: int, same: bool) -> None:
    first = memory.take(MIB)
    memory.give(first)
    assert (memory.take(size) == first) is same


@pytest.mark.parametrize("size", [0, 1, LEAST - 1, MOST + 1])
def test_small_and_very_large_blocks_are_not_kept(memory: Memory, size: int) -> None:
    memory.give(memory.take(size))
    assert not memory.blocks


def test_no_more_than_a_few_blocks_are_kept_the_newest_of_them(memory: Memory) -> None:
    blocks = [memory.take(LEAST + n) for n in range(3 * memory_text.SLOTS)]
    assert len({*blocks}) == len(blocks)
    for block in blocks:
        memory.give(block)
    assert len(memory.blocks) == memory_text.SLOTS
    newest = blocks[-memory_text.SLOTS :]
    assert {memory.take(LEAST) for _ in newest} == {*newest}


def test_blocks_are_aligned_and_lie_in_what_the_system_gave(memory: Memory) -> None:
    for size in (0, 1, 100, LEAST, 3 * MIB + 1):
        block = memory.take(size)
        assert block % 64 == 0
        ((raw, whole),) = (
            (raw, len(whole)) for raw, whole in memory.blocks.items() if raw <= block < raw + len(whole)
        )  # fmt: skip
        assert block - 16 >= raw
        assert block + size <= raw + whole


@pytest.mark.parametrize("size", [-1, 1 << 62, (1 << 63) - 1])
def test_nobody_has_more_than_memory_has(memory: Memory, size: int) -> None:
    assert memory.take(size) is None
    assert not memory.blocks


@pytest.mark.parametrize("platform, advised", [("linux", True), ("darwin", False)])
def test_large_blocks_request_huge_pages(platform: str, advised: bool) -> None:
    if advised and not sys.platform.startswith("linux"):
        pytest.skip("the text for Linux calls what others lack")
    memory = Memory(platform)
    memory.take(4 * MIB - 1000)
    assert not memory.advised
    memory.give(memory.take(8 * MIB))
    assert len(memory.advised) == advised
    for pointer, size in memory.advised:
        assert pointer % 4096 == 0
        assert size > 8 * MIB - 8192
        ends = [(raw, raw + len(whole)) for raw, whole in memory.blocks.items()]
        assert any(raw <= pointer and pointer + size <= end for raw, end in ends)
    memory.take(8 * MIB)  # one that has its pages
    assert len(memory.advised) == advised


def test_threads_never_share_a_block(memory: Memory) -> None:
    failed: list[int] = []

    def use(seed: int, take: Callable[[int], int], give: Callable[[int], None]) -> None:
        for turn in range(300):
            block = take(LEAST + turn % 3 * LEAST)
            cell = ctypes.c_int64.from_address(block)
            cell.value = seed
            if any(cell.value != seed for _ in range(20)):
                failed.append(seed)
            give(block)

    threads = [threading.Thread(target=use, args=(n, memory.take, memory.give)) for n in range(4)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    assert not failed
    assert len(memory.blocks) <= memory_text.SLOTS
