"""`unflatten_quotients`: sums in which a variable is the number of a group and a place in it.

The heads of attention are columns of one array, y[t, d] = sum(p[d // 64, t, s] * v[s, d], axis=s). In d alone
no operand is used again; in the head d // 64 and the column d % 64, the sum is one product of matrices for
each head.
"""

from __future__ import annotations

from contextlib import suppress

from tdsl.autoschedule.open_stages import host_funcs
from tdsl.core.node import Node, transform
from tdsl.errors import ScheduleError
from tdsl.lang.affine import variables
from tdsl.lang.definition import Definition
from tdsl.lang.expr import ZERO, Binary, Const, Var
from tdsl.lang.regions import reads_in
from tdsl.schedule.fluent import BaseSchedule
from tdsl.schedule.state import is_ordered

LEAST = 4  # places of a group, from which they fill a vector


def unflatten_quotients(schedule: BaseSchedule) -> None:
    """Unflatten the variables of sums of products of which one operand reads the quotient alone.

    >>> import tdsl as td
    >>> t, s, d = td.vars("t s d")
    >>> p, v = td.Tensor("p", (4, 32, 32), td.f32), td.Tensor("v", (32, 64), td.f32)
    >>> y, z = td.Func("y", shape=(32, 64)), td.Func("z")
    >>> y[t, d] = td.sum(p[d // 16, t, s] * v[s, d], axis=s)
    >>> z[t, d] = y[t, d] * 2
    >>> schedule = td.Schedule(z)
    >>> unflatten_quotients(schedule)
    >>> print(schedule.state.program.func("y").definitions[0].index)
    (Var(name='t'), Var(name='d_o'), Var(name='d_i'))
    """
    hosts = host_funcs(schedule.state)
    for f in schedule.state.program.funcs:
        plan = schedule.state.plan(f.name)
        if len(f.definitions) > 1 or plan.scheduled or plan.place is not None or f.name in hosts:
            continue
        d = f.definitions[0]
        if d.init is None or is_ordered(f, 0) or len(d.free) != len(d.index):
            continue
        for name in d.free:
            factor = _group_size(d, name)
            if factor >= LEAST:
                with suppress(ScheduleError), schedule.all_or_nothing():
                    if f.name in schedule.state.program.outputs:
                        schedule.cache_write(f.name)
                    schedule[f.name].unflatten(name, factor)


def _group_size(d: Definition, name: str) -> int:
    """The k for which one operand reads the quotient name // k alone, and another one `name`; else 0."""
    sizes = set[int]()
    alone = again = False

    def group(n: Node) -> Node:
        match n:
            case Binary("floordiv", Var(v), Const(k)) if v == name and k > 0:
                sizes.add(int(k))
                return ZERO
            case _:
                return n

    for read in dict.fromkeys(reads_in(d.values)):
        places = any(name in variables(transform(e, group)) for e in read.index)
        again = again or places
        alone = alone or (not places and any(name in variables(e) for e in read.index))
    return sizes.pop() if alone and again and len(sizes) == 1 else 0
