"""`Schedule`: the directives of a program, with what a machine model says of them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tdsl.core.notebook import Listing
from tdsl.schedule.cost.formula import Formula, formula
from tdsl.schedule.fluent import BaseSchedule
from tdsl.target import as_target

if TYPE_CHECKING:  # a program that asks for no prediction is compiled without the model
    from tdsl.schedule.cost.predict import Prediction


class Schedule(BaseSchedule):
    """How the funcs of a program run: `s[f]` is a stage, and its methods are directives.

    A directive is checked when it is given and raises ScheduleError if it would change the meaning or
    names what is not there. `print(s)` is Python that rebuilds the schedule; `to_json` and `replay` store
    and restore it. Funcs that no directive mentions get a default schedule.
    """

    def formula(self) -> Formula:
        """Operations and bytes of the program as sympy expressions of its sizes.

        >>> from tdsl.lang import reduction
        >>> from tdsl.lang.tensor import Func, Tensor
        >>> from tdsl.lang.value import vars
        >>> i, j, k = vars("i j k")
        >>> a, b, c = Tensor("a", ("M", "K"), "f32"), Tensor("b", ("K", "N"), "f32"), Func("c")
        >>> c[i, j] = reduction.sum(a[i, k] * b[k, j], axis=k)
        >>> Schedule(c).formula().operations
        2*K*M*N
        """
        return formula(self.state)

    def traffic(self, level: str) -> float:
        """The bytes that a level of memory exchanges with what is further out, as it is predicted.

        Of a cache, what it does not keep; of a GPU's "global" memory, and of "memory", what is loaded from
        there and stored. What the schedule leaves open is taken as the default schedule has it. ShapeError
        where sizes are not known, TargetError for a level that the target does not have.

        >>> from tdsl.lang.tensor import Func, Tensor
        >>> from tdsl.lang.value import vars
        >>> i, a, f = vars("i"), Tensor("a", (1 << 20,), "f32"), Func("f")
        >>> f[i] = a[i] + 1
        >>> Schedule(f).traffic("memory") == 2 * 4 * (1 << 20)
        True
        """
        from tdsl.schedule.cost.moved import total

        return total(self.prediction().moved(level))

    def footprint(self, level: str) -> float:
        """The bytes that one instance of a level of memory holds at a time, as it is predicted.

        Of a GPU's "shared" memory those of a block of the kernel that has the most, as it will ask for them:
        with all slots of pipelines, their barriers, and what warps pass on to each other. A stage whose scope
        is left open is not counted. Of "registers" those of a thread.

        >>> from tdsl.lang import reduction
        >>> from tdsl.lang.tensor import Func, Tensor
        >>> from tdsl.lang.value import vars
        >>> i, j, k = vars("i j k")
        >>> a, b, c = Tensor("a", (256, 64), "f32"), Tensor("b", (64, 256), "f32"), Func("c")
        >>> c[i, j] = reduction.sum(a[i, k] * b[k, j], axis=k)
        >>> s = Schedule(c, target="cuda")
        >>> io, jo, ii, ji = s[c].tile((i, j), (16, 16))
        >>> ko, ki = s[c].split(k, 16)
        >>> _ = s[c].reorder(io, jo, ii, ji, ko, ki).bind(io, "blockIdx.y").bind(jo, "blockIdx.x")
        >>> _ = s[c].bind(ii, "threadIdx.y").bind(ji, "threadIdx.x")
        >>> for t in (a, b):
        ...     _ = s.cache_read(t, c, at=ko, scope="shared").cooperate(4)
        >>> one = s.footprint("shared")
        >>> _ = s[c].pipeline(ko, 3)
        >>> one == 4 * 2 * 16 * 16, s.footprint("shared") == 3 * one
        (True, True)
        """
        return self.prediction().held(level)

    def explain(self) -> Listing:
        """A line for each edge: where what is read lives, what that saves or costs; bytes by level, time.

        Of a schedule that was found, why other candidates were not taken, too.
        """
        from tdsl.schedule.bind import bind_state
        from tdsl.schedule.cost.edges import explained

        prediction = self.prediction()
        given = bind_state(self.state, self.sizes)
        return Listing(explained(prediction, given, self.notes, self.reasons))

    def prediction(self) -> Prediction:
        """What the schedule will do for its sizes on the machine of its target."""
        from tdsl.schedule.cost.machine import machine_for
        from tdsl.schedule.cost.predict import Prediction

        known = self._prediction
        machine = machine_for(as_target(self.target))
        if known is None or known[0] is not self.state or known[1] != machine:
            known = self.state, machine, Prediction.of(self.state, self.sizes, machine)
            self._prediction = known
        prediction: Prediction = known[2]
        return prediction
