"""LLVM IR of `tdsl_malloc` and `tdsl_free`: heap memory of kernels, with a cache of freed blocks.

The C library maps large blocks from the system and unmaps them when they are freed, so every call of a kernel
would fault on each page again. Instead a few freed blocks of moderate size are cached for the whole process,
whichever kernel and thread freed them, and reused for requests of a similar size.

A header of 16 bytes precedes each block: the pointer that `malloc` returned, and the block's size in bytes.
"""

SLOTS = 8  # cached blocks, at most
CACHED_SIZES = (1 << 16, 1 << 26)  # bytes of the smallest and the largest block that is cached
_HUGE_PAGE_SIZE = (
    1 << 22
)  # bytes from which transparent huge pages are requested, as NumPy does for its arrays
_PAGE, _MADV_HUGEPAGE = 1 << 12, 14  # bytes of a small page; MADV_HUGEPAGE of Linux
_ALIGN, _HEADER = 64, 16
_LARGEST_REQUEST = 1 << 62  # bytes: larger requests fail at once, and sums of sizes stay below 2^63

_SYSTEM_BLOCKS = f"""
define private ptr @fresh(i64 %size) {{
entry:
  %possible = icmp ult i64 %size, {_LARGEST_REQUEST}
  br i1 %possible, label %ask, label %missing
ask:
  %total = add i64 %size, {_ALIGN + _HEADER}
  %raw = call ptr @malloc(i64 %total)
  %none = icmp eq ptr %raw, null
  br i1 %none, label %missing, label %made
made:
  call void @advise(ptr %raw, i64 %total)
  %above = getelementptr i8, ptr %raw, i64 {_ALIGN + _HEADER - 1}
  %block = call ptr @llvm.ptrmask.p0.i64(ptr %above, i64 {-_ALIGN})
  %owner = getelementptr i8, ptr %block, i64 -16
  store ptr %raw, ptr %owner
  %room = getelementptr i8, ptr %block, i64 -8
  store i64 %size, ptr %room
  ret ptr %block
missing:
  ret ptr null
}}

define private void @drop(ptr %block) {{
entry:
  %some = icmp ne ptr %block, null
  br i1 %some, label %give, label %end
give:
  %owner = getelementptr i8, ptr %block, i64 -16
  %raw = load ptr, ptr %owner
  call void @free(ptr %raw)
  br label %end
end:
  ret void
}}

declare ptr @malloc(i64)
declare void @free(ptr)
declare ptr @llvm.ptrmask.p0.i64(ptr, i64)
"""

_REQUEST_HUGE_PAGES = f"""
define private void @advise(ptr %raw, i64 %total) {{
entry:
  %large = icmp uge i64 %total, {_HUGE_PAGE_SIZE}
  br i1 %large, label %ask, label %end
ask:
  %above = getelementptr i8, ptr %raw, i64 {_PAGE - 1}
  %page = call ptr @llvm.ptrmask.p0.i64(ptr %above, i64 {-_PAGE})
  %inside = sub i64 %total, {_PAGE}
  %ignored = call i32 @madvise(ptr %page, i64 %inside, i32 {_MADV_HUGEPAGE})
  br label %end
end:
  ret void
}}

declare i32 @madvise(ptr, i64, i32)
"""

_NO_HUGE_PAGES = "define private void @advise(ptr %raw, i64 %total) {\n  ret void\n}\n"

_BLOCK_CACHE = f"""
@kept = private global [{SLOTS} x ptr] zeroinitializer, align 64
@turn = private global i64 0

define ptr @tdsl_malloc(i64 %size) {{
entry:
  %large = icmp uge i64 %size, {CACHED_SIZES[0]}
  br i1 %large, label %look, label %new
look:
  %k = phi i64 [ 0, %entry ], [ %next, %on ]
  %slot = getelementptr ptr, ptr @kept, i64 %k
  %seen = load atomic ptr, ptr %slot monotonic, align 8
  %empty = icmp eq ptr %seen, null
  br i1 %empty, label %on, label %take
take:
  %block = atomicrmw xchg ptr %slot, ptr null acq_rel, align 8
  %late = icmp eq ptr %block, null
  br i1 %late, label %on, label %compare
compare:
  %room.at = getelementptr i8, ptr %block, i64 -8
  %room = load i64, ptr %room.at
  %half = lshr i64 %room, 1
  %enough = icmp uge i64 %room, %size
  %alike = icmp ule i64 %half, %size
  %fits = and i1 %enough, %alike
  br i1 %fits, label %found, label %back
found:
  ret ptr %block
back:
  %other = atomicrmw xchg ptr %slot, ptr %block acq_rel, align 8
  call void @drop(ptr %other)
  br label %on
on:
  %next = add i64 %k, 1
  %all = icmp eq i64 %next, {SLOTS}
  br i1 %all, label %new, label %look
new:
  %made = call ptr @fresh(i64 %size)
  ret ptr %made
}}

define void @tdsl_free(ptr %block) {{
entry:
  %room.at = getelementptr i8, ptr %block, i64 -8
  %room = load i64, ptr %room.at
  %beyond = sub i64 %room, {CACHED_SIZES[0]}
  %moderate = icmp ule i64 %beyond, {CACHED_SIZES[1] - CACHED_SIZES[0]}
  br i1 %moderate, label %look, label %away
look:
  %k = phi i64 [ 0, %entry ], [ %next, %on ]
  %slot = getelementptr ptr, ptr @kept, i64 %k
  %pair = cmpxchg ptr %slot, ptr null, ptr %block acq_rel monotonic
  %done = extractvalue {{ ptr, i1 }} %pair, 1
  br i1 %done, label %end, label %on
on:
  %next = add i64 %k, 1
  %all = icmp eq i64 %next, {SLOTS}
  br i1 %all, label %instead, label %look
instead:
  %count = atomicrmw add ptr @turn, i64 1 monotonic, align 8
  %n = urem i64 %count, {SLOTS}
  %oldest = getelementptr ptr, ptr @kept, i64 %n
  %other = atomicrmw xchg ptr %oldest, ptr %block acq_rel, align 8
  call void @drop(ptr %other)
  br label %end
away:
  call void @drop(ptr %block)
  br label %end
end:
  ret void
}}
"""


def allocator_text(platform: str) -> str:
    """The IR text for a system, given as in `sys.platform`."""
    return (
        _BLOCK_CACHE
        + _SYSTEM_BLOCKS
        + (_REQUEST_HUGE_PAGES if platform.startswith("linux") else _NO_HUGE_PAGES)
    )
