"""`Schedule`: the directives of a program, and predictions of its traffic, footprint and time."""

from __future__ import annotations

from copy import copy
from typing import TYPE_CHECKING

from tdsl.core.notebook import Listing
from tdsl.cost.formula import Formula, formula
from tdsl.schedule.bind import bind_state
from tdsl.schedule.fluent import BaseSchedule
from tdsl.schedule.legality import check_all
from tdsl.schedule.state import Inline
from tdsl.target import as_target

if TYPE_CHECKING:  # the default schedule is imported only when a prediction is computed
    from tdsl.autoschedule.explain import Decision
    from tdsl.cost.predict import Prediction


class Schedule(BaseSchedule):
    """How the funcs of a program run: `s[f]` is a stage, and its methods are directives.

    Each directive is checked when it is called and raises ScheduleError if it would change the meaning of
    the program or names an unknown func or loop. `print(s)` shows Python code that rebuilds the schedule;
    `to_json` and `replay` store and restore it. What no directive says is as in the default schedule.
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
        """The predicted bytes that a memory level exchanges with the next level further out.

        For a cache these are reads and writes that miss it; for "memory", and for "global" memory of a GPU,
        all loads and stores of that memory. What no directive says counts as in the default schedule.
        Raises ShapeError if sizes are unknown, TargetError for a level that the target does not have.

        >>> from tdsl.lang.tensor import Func, Tensor
        >>> from tdsl.lang.value import vars
        >>> i, a, f = vars("i"), Tensor("a", (1 << 20,), "f32"), Func("f")
        >>> f[i] = a[i] + 1
        >>> Schedule(f).traffic("memory") == 2 * 4 * (1 << 20)
        True
        """
        from tdsl.cost.moved import total

        return total(self.prediction().moved(level))

    def footprint(self, level: str) -> float:
        """The predicted bytes that the program uses of one instance of a memory level at a time.

        For "shared" memory of a GPU these are the bytes that a block of the most demanding kernel allocates:
        with all slots of pipelines, their barriers, and buffers for exchange between warps. A stage whose
        scope is "auto" is not counted. For "registers" they are the bytes of a thread.

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
        return self.prediction().footprint(level)

    def explain(self) -> Listing:
        """A line for each producer-consumer edge (its memory level, what that saves or costs), bytes, time.

        For a schedule that a search chose, also why other candidates were rejected.
        """
        from tdsl.autoschedule.edges import explained

        prediction, decisions = self._predict()
        given = bind_state(self.state, self.sizes)
        return Listing(explained(prediction, given, decisions, self.notes, self.reasons))

    def tree(self) -> Listing:
        """The loops of each nest as nested tiles, a line for each, with what is computed inside below it.

        Each loop is named by its variable, with the number of its values that one iteration goes through;
        `*` marks threads, `:u` unrolled loops and `:v` lanes. What no directive says is as in the default
        schedule. ShapeError where sizes are left open.

        >>> from tdsl.lang import reduction
        >>> from tdsl.lang.tensor import Func, Tensor
        >>> from tdsl.lang.value import vars
        >>> i, j, k = vars("i j k")
        >>> a, b, c = Tensor("a", (256, 64), "f32"), Tensor("b", (64, 256), "f32"), Func("c")
        >>> c[i, j] = reduction.sum(a[i, k] * b[k, j], axis=k)
        >>> s = Schedule(c)
        >>> _ = s[c].tile((i, j), (32, 64))
        >>> _ = s[c].parallel("i_o").vectorize("j_i", 8).pin()
        >>> print(s.tree())
        c: i:32* j:64 i j:8 j:v8 k
        """
        from tdsl.tilegraph.tree_lines import tree_lines

        return Listing("\n".join(tree_lines(self.prediction().nests)))

    def completed(self) -> Schedule:
        """This schedule with the directives of the default schedule for all that is left open.

        What is printed is the whole schedule of the program, for the sizes and the target of this one; each
        stage ends pinned, so that completing it again changes nothing.

        >>> from tdsl.lang.tensor import Func, Tensor
        >>> from tdsl.lang.value import vars
        >>> from tdsl.machine.model import Machine
        >>> i, j, a, f = *vars("i j"), Tensor("a", (500, 500), "f32"), Func("f")
        >>> f[i, j] = a[i, j] + 1
        >>> print(Schedule(f, target="cpu:avx2").completed())
        s["f"].vectorize("j", 8)
        s["f"].parallel("i")
        s["f"].pin()
        """
        from tdsl.tilegraph.default import completion

        check_all(self.state)
        state = bind_state(self.state, self.sizes)
        schedule = copy(self)
        for directive in completion(state, as_target(self.target).machine()).directives:
            schedule.do(directive)
        for name, plan in schedule.state.plans:
            if not isinstance(plan.place, Inline):
                schedule[name].pin()
        return schedule

    def prediction(self) -> Prediction:
        """The predicted traffic, footprint and time for this schedule's sizes on its target's machine.

        ShapeError where sizes are left open.
        """
        return self._predict()[0]

    def _predict(self) -> tuple[Prediction, tuple[Decision, ...]]:
        """The prediction, and the decisions of the default schedule for what no directive says."""
        from tdsl.tilegraph.predict import predict

        machine = as_target(self.target).machine()
        known = self._prediction
        if known is None or known[0] is not self.state or known[1] != machine:
            known = self.state, machine, predict(self.state, self.sizes, machine)
            self._prediction = known
        predicted: tuple[Prediction, tuple[Decision, ...]] = known[2]
        return predicted
