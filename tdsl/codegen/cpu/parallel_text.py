"""LLVM IR of `parallel_for`: guided self-scheduling of a loop, and a pool of POSIX threads.

A job is stored on the stack of its caller. Threads take chunks of 0..n until none is left, each a fraction of
the remaining iterations, which balances the load whether few threads join or a core is busy:

    fn, ctx, n, parts     the loop; the size of the next chunk is remaining iterations / parts
    link, allowed, joined, inside, waiting     fields of the pool, under its lock (the caller polls `inside`)
    next                  the first iteration that no thread has taken, in a cache line of its own

`@tdsl_region(job, threads)` lets other threads work on a job, works on it too, and returns when none of
them accesses it any more. A nested call returns at once, and the caller then executes the whole loop.
"""

_JOB = "%job = type { ptr, ptr, i64, i64, ptr, i64, i64, i64, i64, [56 x i8], i64, [56 x i8] }\n"
_FIELDS = ("fn", "ctx", "n", "parts", "link", "allowed", "joined", "inside", "waiting", "", "next")

SPIN = 1000  # iterations that a waiting thread spins before it sleeps: 5 to 50 us


def _field_addresses(*fields: str) -> str:
    """IR for the addresses %FIELD.at of fields of %job."""
    return "".join(
        f"  %{f}.at = getelementptr %job, ptr %job, i64 0, i32 {_FIELDS.index(f)}\n" for f in fields
    )


SELF_SCHEDULING = f"""
{_JOB}
@tdsl_threads = global i64 1
@tdsl_region = global ptr null

define void @tdsl_work(ptr %job) {{
entry:
{_field_addresses("ctx", "n", "parts", "next")}
  %fn = load ptr, ptr %job
  %ctx = load ptr, ptr %ctx.at
  %n = load i64, ptr %n.at
  %parts = load i64, ptr %parts.at
  br label %look
look:
  %seen = load atomic i64, ptr %next.at monotonic, align 8
  br label %try
try:
  %begin = phi i64 [ %seen, %look ], [ %newer, %take ]
  %left = sub i64 %n, %begin
  %some = icmp sgt i64 %left, 0
  br i1 %some, label %take, label %done
take:
  %fraction = udiv i64 %left, %parts
  %share = call i64 @llvm.umax.i64(i64 %fraction, i64 1)
  %end = add i64 %begin, %share
  %swap = cmpxchg ptr %next.at, i64 %begin, i64 %end monotonic monotonic
  %newer = extractvalue {{ i64, i1 }} %swap, 0
  %mine = extractvalue {{ i64, i1 }} %swap, 1
  br i1 %mine, label %run, label %try
run:
  call void %fn(ptr %ctx, i64 %begin, i64 %end)
  br label %look
done:
  ret void
}}

define void @tdsl_parallel_for(ptr %fn, ptr %ctx, i64 %n) {{
entry:
  %job = alloca %job, align 64
  %most = load atomic i64, ptr @tdsl_threads monotonic, align 8
  %threads = call i64 @llvm.smin.i64(i64 %most, i64 %n)
  %several = icmp sgt i64 %threads, 1
  %region = load atomic ptr, ptr @tdsl_region acquire, align 8
  %possible = icmp ne ptr %region, null
  %parallel = and i1 %several, %possible
  br i1 %parallel, label %together, label %alone
together:
{_field_addresses("ctx", "n", "parts", "next")}
  %parts = shl i64 %threads, 1
  store ptr %fn, ptr %job
  store ptr %ctx, ptr %ctx.at
  store i64 %n, ptr %n.at
  store i64 %parts, ptr %parts.at
  store i64 0, ptr %next.at
  call void %region(ptr %job, i64 %threads)
  call void @tdsl_work(ptr %job)
  ret void
alone:
  %any = icmp sgt i64 %n, 0
  br i1 %any, label %all, label %end
all:
  call void %fn(ptr %ctx, i64 0, i64 %n)
  br label %end
end:
  ret void
}}

declare i64 @llvm.smin.i64(i64, i64)
declare i64 @llvm.umax.i64(i64, i64)
"""

OPENMP = """
@tdsl_gomp_parallel = global ptr null
@tdsl_omp_in_parallel = global ptr null

define void @tdsl_openmp(ptr %job, i64 %threads) {
entry:
  %query = load ptr, ptr @tdsl_omp_in_parallel
  %inside = call i32 %query()
  %outermost = icmp eq i32 %inside, 0
  br i1 %outermost, label %region, label %end
region:
  %gomp = load ptr, ptr @tdsl_gomp_parallel
  %team = trunc i64 %threads to i32
  call void %gomp(ptr @tdsl_work, ptr %job, i32 %team, i32 0)
  br label %end
end:
  ret void
}
"""

_PAUSES = {
    "x86_64": "call void @llvm.x86.sse2.pause()",
    "aarch64": "call void @llvm.aarch64.hint(i32 1)",
    "arm64": "call void @llvm.aarch64.hint(i32 1)",
}
_PAUSE_DECLARATIONS = {
    "x86_64": "declare void @llvm.x86.sse2.pause()",
    "aarch64": "declare void @llvm.aarch64.hint(i32 immarg)",
    "arm64": "declare void @llvm.aarch64.hint(i32 immarg)",
}


# The scheduler of the system does not balance threads that sleep for microseconds at a time: a worker that
# once wakes on its caller's core would stay there, and each would get half of the core.
_LEAVE_CALLERS_CORE = """
@opener = internal global i32 -1, align 64

define internal void @opens() {
  %core = call i32 @sched_getcpu()
  store atomic i32 %core, ptr @opener monotonic, align 4
  ret void
}

; Move to another core from that of the last caller, and then allow all of them again.
define internal void @spread() {
entry:
  %all = alloca [128 x i8], align 8
  %others = alloca [128 x i8], align 8
  %core = call i32 @sched_getcpu()
  %caller = load atomic i32, ptr @opener monotonic, align 4
  %shared = icmp eq i32 %core, %caller
  %known = icmp ult i32 %core, 1024
  %move = and i1 %shared, %known
  br i1 %move, label %ask, label %end
ask:
  %failed = call i32 @sched_getaffinity(i32 0, i64 128, ptr %all)
  %asked = icmp eq i32 %failed, 0
  br i1 %asked, label %leave, label %end
leave:
  call void @llvm.memcpy.p0.p0.i64(ptr %others, ptr %all, i64 128, i1 false)
  %n = zext i32 %core to i64
  %word = lshr i64 %n, 6
  %place = and i64 %n, 63
  %bit = shl i64 1, %place
  %at = getelementptr i64, ptr %others, i64 %word
  %allowed = load i64, ptr %at
  %rest = xor i64 %allowed, %bit
  store i64 %rest, ptr %at
  ; refused where no other core is left
  %moved = call i32 @sched_setaffinity(i32 0, i64 128, ptr %others)
  %back = call i32 @sched_setaffinity(i32 0, i64 128, ptr %all)
  br label %end
end:
  ret void
}

declare i32 @sched_getcpu()
declare i32 @sched_getaffinity(i32, i64, ptr)
declare i32 @sched_setaffinity(i32, i64, ptr)
declare void @llvm.memcpy.p0.p0.i64(ptr, ptr, i64, i1 immarg)
"""
_STAY_ON_CORE = """
define internal void @opens() {
  ret void
}

define internal void @spread() {
  ret void
}
"""


_STATE = """
@lock = internal global [128 x i8] zeroinitializer, align 64
@wake = internal global [128 x i8] zeroinitializer, align 64
@done = internal global [128 x i8] zeroinitializer, align 64
@key = internal global i64 0
@head = internal global ptr null
@workers = internal global i64 0
@sleepers = internal global i64 0
@opened = internal global i64 0, align 64

; Also in the child of a fork, which has none of the threads, whatever they held.
define void @tdsl_pool_reset() {
  call void @llvm.memset.p0.i64(ptr @lock, i8 0, i64 128, i1 false)
  call void @llvm.memset.p0.i64(ptr @wake, i8 0, i64 128, i1 false)
  call void @llvm.memset.p0.i64(ptr @done, i8 0, i64 128, i1 false)
  %a = call i32 @pthread_mutex_init(ptr @lock, ptr null)
  %b = call i32 @pthread_cond_init(ptr @wake, ptr null)
  %c = call i32 @pthread_cond_init(ptr @done, ptr null)
  store ptr null, ptr @head
  store i64 0, ptr @workers
  store i64 0, ptr @sleepers
  ret void
}

define i32 @tdsl_pool_start() {
  call void @tdsl_pool_reset()
  %failed = call i32 @pthread_key_create(ptr @key, ptr null)
  ret i32 %failed
}
"""

_SPAWN = """
; With the lock held: start workers until there are enough, or no more can be had.
define internal void @spawn(i64 %wanted) {
entry:
  %thread = alloca i64
  br label %count
count:
  %workers = load i64, ptr @workers
  %few = icmp slt i64 %workers, %wanted
  br i1 %few, label %create, label %end
create:
  %failed = call i32 @pthread_create(ptr %thread, ptr null, ptr @worker, ptr null)
  %created = icmp eq i32 %failed, 0
  br i1 %created, label %created.one, label %end
created.one:
  %handle = load i64, ptr %thread
  %detached = call i32 @pthread_detach(i64 %handle)
  %more = add i64 %workers, 1
  store i64 %more, ptr @workers
  br label %count
end:
  ret void
}
"""

_WAKE_WORKERS = f"""
; With the lock held: wake up to two workers. Those wake others, so all are awake in log2 steps.
define internal void @wake_two(ptr %job) {{
entry:
{_field_addresses("allowed", "joined")}
  %allowed = load i64, ptr %allowed.at
  %joined = load i64, ptr %joined.at
  %wanted = sub i64 %allowed, %joined
  %sleepers = load i64, ptr @sleepers
  %count = call i64 @llvm.smin.i64(i64 %wanted, i64 %sleepers)
  %one = icmp sgt i64 %count, 0
  br i1 %one, label %first, label %end
first:
  %a = call i32 @pthread_cond_signal(ptr @wake)
  %two = icmp sgt i64 %count, 1
  br i1 %two, label %second, label %end
second:
  %b = call i32 @pthread_cond_signal(ptr @wake)
  br label %end
end:
  ret void
}}
"""


def _worker(pause: str) -> str:
    """IR of a worker thread: joins a job with work left; if no job has any, it spins a while, then sleeps."""
    return f"""
define internal ptr @worker(ptr %unused) {{
entry:
  %key = load i64, ptr @key
  %marked = call i32 @pthread_setspecific(i64 %key, ptr @lock)
  %l0 = call i32 @pthread_mutex_lock(ptr @lock)
  br label %find
find:
  %spun = phi i1 [ false, %entry ], [ false, %leave ], [ true, %spin.end ], [ false, %sleep ]
  %first = load ptr, ptr @head
  br label %look
look:
  %job = phi ptr [ %first, %find ], [ %link, %other ]
  %none = icmp eq ptr %job, null
  br i1 %none, label %idle, label %check
check:
{_field_addresses("n", "link", "allowed", "joined", "inside", "waiting", "next")}
  %n = load i64, ptr %n.at
  %next = load atomic i64, ptr %next.at monotonic, align 8
  %allowed = load i64, ptr %allowed.at
  %joined = load i64, ptr %joined.at
  %left = icmp slt i64 %next, %n
  %room = icmp slt i64 %joined, %allowed
  %wanted = and i1 %left, %room
  br i1 %wanted, label %join, label %other
other:
  %link = load ptr, ptr %link.at
  br label %look
join:
  %joined.more = add i64 %joined, 1
  store i64 %joined.more, ptr %joined.at
  %came = atomicrmw add ptr %inside.at, i64 1 monotonic
  call void @wake_two(ptr %job)
  %u1 = call i32 @pthread_mutex_unlock(ptr @lock)
  call void @spread()
  call void @tdsl_work(ptr %job)
  %l1 = call i32 @pthread_mutex_lock(ptr @lock)
  %waiting = load i64, ptr %waiting.at
  ; The job may be gone once this says that nobody is inside.
  %went = atomicrmw sub ptr %inside.at, i64 1 release
  %awaited = icmp ne i64 %waiting, 0
  br i1 %awaited, label %tell, label %leave
tell:
  %t = call i32 @pthread_cond_broadcast(ptr @done)
  br label %leave
leave:
  br label %find
idle:
  br i1 %spun, label %sleep, label %spin
spin:
  %seen = load atomic i64, ptr @opened monotonic, align 8
  %u2 = call i32 @pthread_mutex_unlock(ptr @lock)
  call void @spread()
  br label %turn
turn:
  %k = phi i64 [ 0, %spin ], [ %k.next, %turn ]
  {pause}
  %k.next = add i64 %k, 1
  %now = load atomic i64, ptr @opened monotonic, align 8
  %same = icmp eq i64 %now, %seen
  %patient = icmp slt i64 %k.next, {SPIN}
  %on = and i1 %same, %patient
  br i1 %on, label %turn, label %spin.end
spin.end:
  %l2 = call i32 @pthread_mutex_lock(ptr @lock)
  br label %find
sleep:
  %s0 = load i64, ptr @sleepers
  %s1 = add i64 %s0, 1
  store i64 %s1, ptr @sleepers
  %w = call i32 @pthread_cond_wait(ptr @wake, ptr @lock)
  %s2 = load i64, ptr @sleepers
  %s3 = sub i64 %s2, 1
  store i64 %s3, ptr @sleepers
  br label %find
}}
"""


def _caller(pause: str) -> str:
    """IR of `@tdsl_pool`: lists a job, works on it, removes it from the list, waits for workers inside."""
    return f"""
define void @tdsl_pool(ptr %job, i64 %threads) {{
entry:
{_field_addresses("link", "allowed", "joined", "inside", "waiting")}
  %key = load i64, ptr @key
  %mark = call ptr @pthread_getspecific(i64 %key)
  %nested = icmp ne ptr %mark, null
  br i1 %nested, label %end, label %open
open:
  %m1 = call i32 @pthread_setspecific(i64 %key, ptr @lock)
  %allowed = sub i64 %threads, 1
  store i64 %allowed, ptr %allowed.at
  store i64 0, ptr %joined.at
  store i64 0, ptr %inside.at
  store i64 0, ptr %waiting.at
  call void @opens()
  %l1 = call i32 @pthread_mutex_lock(ptr @lock)
  call void @spawn(i64 %allowed)
  %old = load ptr, ptr @head
  store ptr %old, ptr %link.at
  store ptr %job, ptr @head
  %opened = atomicrmw add ptr @opened, i64 1 release
  call void @wake_two(ptr %job)
  %u1 = call i32 @pthread_mutex_unlock(ptr @lock)
  call void @tdsl_work(ptr %job)
  %l2 = call i32 @pthread_mutex_lock(ptr @lock)
  br label %search
search:
  %slot = phi ptr [ @head, %open ], [ %further, %step ]
  %here = load ptr, ptr %slot
  %found = icmp eq ptr %here, %job
  br i1 %found, label %unlink, label %step
step:
  %further = getelementptr %job, ptr %here, i64 0, i32 {_FIELDS.index("link")}
  br label %search
unlink:
  %link = load ptr, ptr %link.at
  store ptr %link, ptr %slot
  %u2 = call i32 @pthread_mutex_unlock(ptr @lock)
  br label %turn
turn:
  %k = phi i64 [ 0, %unlink ], [ %k.next, %busy ]
  %inside = load atomic i64, ptr %inside.at acquire, align 8
  %free = icmp eq i64 %inside, 0
  br i1 %free, label %close, label %busy
busy:
  {pause}
  %k.next = add i64 %k, 1
  %patient = icmp slt i64 %k.next, {SPIN}
  br i1 %patient, label %turn, label %sleep
sleep:
  %l3 = call i32 @pthread_mutex_lock(ptr @lock)
  store i64 1, ptr %waiting.at
  br label %again
again:
  %still = load atomic i64, ptr %inside.at acquire, align 8
  %gone = icmp eq i64 %still, 0
  br i1 %gone, label %awake, label %wait
wait:
  %w = call i32 @pthread_cond_wait(ptr @done, ptr @lock)
  br label %again
awake:
  %u3 = call i32 @pthread_mutex_unlock(ptr @lock)
  br label %close
close:
  %m2 = call i32 @pthread_setspecific(i64 %key, ptr null)
  br label %end
end:
  ret void
}}
"""


_DECLARATIONS = """
declare void @llvm.memset.p0.i64(ptr, i8, i64, i1 immarg)
declare i32 @pthread_mutex_init(ptr, ptr)
declare i32 @pthread_mutex_lock(ptr)
declare i32 @pthread_mutex_unlock(ptr)
declare i32 @pthread_cond_init(ptr, ptr)
declare i32 @pthread_cond_signal(ptr)
declare i32 @pthread_cond_broadcast(ptr)
declare i32 @pthread_cond_wait(ptr, ptr)
declare i32 @pthread_create(ptr, ptr, ptr, ptr)
declare i32 @pthread_detach(i64)
declare i32 @pthread_key_create(ptr, ptr)
declare ptr @pthread_getspecific(i64)
declare i32 @pthread_setspecific(i64, ptr)
"""


def pool(architecture: str, system: str) -> str:
    """IR of a pool of POSIX threads: `@tdsl_pool` is a `@tdsl_region`; call `@tdsl_pool_start` first.

    Open jobs are in a list. A worker joins a job that has work left and fewer workers than allowed, wakes
    others, works, and leaves. The caller works too, removes the job from the list, and waits only for the
    workers inside, not for those that never got a core. A waiting thread spins `SPIN` times, then sleeps.
    On Linux a worker that runs on the core of a caller moves to another core. Threads inside a job are marked
    by a pthread-specific value: not every object loader supports thread-local variables.
    """
    pause = _PAUSES.get(architecture, "")
    return "".join(
        (
            _LEAVE_CALLERS_CORE if system == "linux" else _STAY_ON_CORE,
            _STATE,
            _SPAWN,
            _WAKE_WORKERS,
            _worker(pause),
            _caller(pause),
            _PAUSE_DECLARATIONS.get(architecture, ""),
            _DECLARATIONS,
        )
    )
