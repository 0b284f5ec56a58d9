"""Orders of steps and windows of messages that are wrong."""

import tdsl as td
from tests.errors.case import Catalogue

CASES = Catalogue()
wrong = CASES.wrong

i = td.vars("i")
line = td.Grid(x=2)


def chain(steps=(4, 4, 4)):
    """Three funcs, one after the other, on alternate ranks, and their loops over steps."""
    x, f, g, h = td.Tensor("x", (8,), td.f32), td.Func("f"), td.Func("g"), td.Func("h")
    f[i] = x[i] + 1
    g[i] = f[i] * 2
    h[i] = g[i] + 3
    s = td.Schedule(h).place(x, "i -> 0", line)
    loops = []
    for n, (func, count) in enumerate(zip((f, g, h), steps, strict=True)):
        s.place(func, f"i -> {n % 2}", line)[func].distribute(n % 2, line)
        loops.append(s[func].divide(i, count)[0])
    return s, loops


def planned(s):
    return td.compile(s).plan()


@wrong(td.ScheduleError, "'f' is interleaved already", hint="one loop of each func")
def loop_in_two_orders():
    s, loops = chain()
    s.interleave([loops[0], loops[0]])  # here


@wrong(td.ScheduleError, "one loop has one order of its steps", hint="two funcs or more")
def order_of_one_loop():
    s, loops = chain()
    s.interleave(loops[:1])  # here


@wrong(td.ScheduleError, "'x' is not distributed", hint="distribute its loops first")
def order_of_an_input():
    s, loops = chain()
    s.interleave([loops[0], ("x", "i")])  # here


@wrong(td.ScheduleError, "'i_i' of 'g' is not the first loop", hint="reorder the loops before")
def order_of_an_inner_loop():
    s, loops = chain()
    s.interleave([loops[0], ("g", "i_i")])  # here


@wrong(td.ScheduleError, "loop 'i_o' is unrolled, but ranks step through it", hint="serial loops")
def order_of_an_unrolled_loop():
    s, loops = chain()
    s["g"].unroll("i_o")
    s.interleave(loops)  # here


@wrong(td.ScheduleError, "there is no loop 3", hint="numbered from 0 to 2")
def order_with_an_unknown_loop():
    s, loops = chain()
    s.interleave(loops, order=[(3, 0)])  # here
    planned(s)


@wrong(td.ScheduleError, "step 0 of 'f' comes where step 1 is next", hint="from 0 upwards")
def order_with_a_step_twice():
    s, loops = chain()
    s.interleave(loops, order=[(0, 0), (0, 0)])  # here
    planned(s)


@wrong(td.ScheduleError, "'g' has 4 steps, of which 0 are named", hint="name all steps of each loop")
def order_without_the_steps_of_a_loop():
    s, loops = chain()
    s.interleave(loops, order=[(0, n) for n in range(4)])  # here
    planned(s)


@wrong(td.ScheduleError, "'f' has 4 steps, 'g' has 2", hint="into as many parts")
def loops_that_advance_together_with_other_steps():
    s, loops = chain(steps=(4, 2, 4))
    s.interleave([[loops[0], loops[1]], loops[2]])  # here
    planned(s)


@wrong(
    td.ScheduleError,
    "step 0 of 'g' waits for step 0 of 'f', which comes later",
    hint="put step 0 of 'f' before",
)
def order_in_which_a_step_is_read_before():
    s, loops = chain()
    s.interleave(loops, order=[(k, n) for n in range(4) for k in (1, 0, 2)])  # here
    planned(s)


@wrong(td.ScheduleError, "a pipeline has a positive number of", hint="stages")
def pipeline_without_stages():
    td.recipes.one_f_one_b(0, 4)  # here


@wrong(td.ScheduleError, "messages with two times to start", hint="without prefetch")
def window_of_a_prefetch():
    s, loops = chain()
    s["g"].communicate("f", at=loops[1], since="f", prefetch=1)  # here


@wrong(td.ScheduleError, "'g' is no other func", hint="There are: f, g, h")
def window_since_the_reader():
    s, loops = chain()
    s["g"].communicate("f", at=loops[1], since="g")  # here


@wrong(td.ScheduleError, "'h' begins after it", hint="name a func that is computed before")
def window_since_a_later_func():
    s, loops = chain()
    s["g"].communicate("f", at=loops[1], since="h")  # here
    planned(s.interleave(loops))


@wrong(td.ScheduleError, "'h' communicates 'g' at a loop without an order", hint="or prefetch")
def window_of_steps_without_an_order():
    s, loops = chain()
    s["h"].communicate("g", at=loops[2], since="f")  # here
    planned(s)


@wrong(td.ScheduleError, "only results of a func are sent until", hint="name them alone")
def window_until_of_a_source():
    s, loops = chain()
    s["g"].communicate("f", at=loops[1], until="h")  # here


@wrong(td.ScheduleError, "'f' begins before step 0 is computed", hint="computed later")
def window_that_ends_before_its_data_are_computed():
    s, loops = chain()
    s["g"].communicate("g", at=loops[1], until="f")  # here
    planned(s.interleave(loops))


@wrong(td.ScheduleError, "step 0 of 'g' reads them before", hint="computed before 'g'")
def window_that_ends_after_a_reader():
    s, loops = chain()
    s.interleave(loops)
    s["f"].communicate("f", at=loops[0], until="h")  # here
    planned(s)


@wrong(td.ScheduleError, "its loop has no order across funcs", hint="one that is interleaved")
def results_of_steps_without_an_order():
    s, loops = chain()
    s["f"].communicate("f", at=loops[0], until="g")  # here
    planned(s)


@wrong(td.ScheduleError, "cannot be received behind 'f'", hint="with since")
def priority_without_a_window():
    s, loops = chain()
    s["h"].communicate("g", at=loops[2], behind="f")  # here


@wrong(td.ScheduleError, "'h' cannot receive 'g' behind 'f': 'f' is received in no window", hint="since=")
def priority_of_messages_without_a_window():
    s, loops = chain()
    s["h"].communicate("g", at=loops[2], since="g", behind="f")  # here
    planned(s.interleave(loops))
