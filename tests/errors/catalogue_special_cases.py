"""Wrong special cases, instructions and stored schedules."""

import numpy as np

import tdsl as td
from tests.errors.case import Catalogue

CASES = Catalogue()
wrong = CASES.wrong

i, j, k = td.vars("i j k")
a = td.Tensor("a", (20, 30), td.f32)


def chain():
    """f reads g at its own points and one row further."""
    g, f = td.Func("g"), td.Func("f")
    g[i, j] = a[i, j] * 2
    f[i, j] = g[i, j] + g[i + 1, j]
    return g, f, td.Schedule(f)


@wrong(td.TypeMismatch, "condition", "True", hint="x.shape[1] % 16 == 0")
def specialization_by_a_bool():
    _, f, s = chain()
    s[f].specialize(True)  # here


@wrong(td.ScheduleError, "cannot depend on data", hint="td.where")
def specialization_by_data():
    _, f, s = chain()
    s[f].specialize(a[0, 0] > 0)  # here


@wrong(td.ScheduleError, "not a value of type i64", hint="compare")
def specialization_by_a_number():
    b, f = td.Tensor("b", ("N",), td.f32), td.Func("f")
    f[i] = b[i] * 2
    td.Schedule(f)[f].specialize(b.shape[0] % 16)  # here


@wrong(td.ScheduleError, "'M' is no scalar or extent of this program", hint="There are: N")
def specialization_by_an_unknown_extent():
    b, c, f = td.Tensor("b", ("N",), td.f32), td.Tensor("c", ("M",), td.f32), td.Func("f")
    f[i] = b[i] * 2
    td.Schedule(f)[f].specialize(c.shape[0] % 16 == 0)  # here


@wrong(td.ScheduleError, "own stage only", hint="recipe")
def specialization_of_two_stages():
    b, g, f = td.Tensor("b", ("N",), td.f32), td.Func("g"), td.Func("f")
    g[i] = b[i] * 2
    f[i] = g[i] + 1
    s = td.Schedule(f)
    s[f].specialize(b.shape[0] > 8, lambda x: x.schedule["g"].split(i, 4))  # here


@wrong(td.ScheduleError, "'inline' cannot be specialized", hint="loops")
def specialization_of_a_place():
    b, g, f = td.Tensor("b", ("N",), td.f32), td.Func("g"), td.Func("f")
    g[i] = b[i] * 2
    f[i] = g[i] + 1
    s = td.Schedule(f)
    s[g].specialize(b.shape[0] > 8, lambda x: x.inline())  # here


@wrong(td.ScheduleError, "no instruction 'twice16'", hint="did you mean 'twice6'")
def unknown_instruction():
    x, out = td.Tensor("x", (6,), td.f32), td.Func("out")
    out[i] = x[i] * 2
    td.instruction("twice6", out, python=lambda o, x: None)
    _, f, s = chain()
    s[f].tensorize(j, "twice16")  # here


@wrong(td.ScheduleError, "instruction must be a string, not None", hint="string")
def instruction_that_is_none():
    _, f, s = chain()
    s[f].tensorize(j, None)  # here


@wrong(td.DefinitionError, "meaning of instruction 'rows'", "constant shape", hint="numbers")
def instruction_of_unknown_size():
    x, out = td.Tensor("x", ("N",), td.f32), td.Func("out")
    out[i] = x[i] * 2
    td.instruction("rows", out, python=lambda o, x: None)  # here


@wrong(td.DefinitionError, "instruction 'nothing' has no code", hint="cuda= or python=")
def instruction_without_code():
    x, out = td.Tensor("x", (4,), td.f32), td.Func("out")
    out[i] = x[i] * 2
    td.instruction("nothing", out)  # here


@wrong(td.TargetError, "instruction 'in_python' has no LLVM code", hint="llvm=")
def instruction_without_code_for_the_target():
    x, out = td.Tensor("x", (30,), td.f32), td.Func("out")
    out[i] = x[i] * 2
    double = td.instruction("in_python", out, python=lambda o, x: None)  # here
    f = td.Func("f")
    f[i, j] = a[i, j] * 2
    s = td.Schedule(f)
    s[f].tensorize(j, double)
    td.compile(s)(np.ones((20, 30), np.float32))


@wrong(td.DefinitionError, "instruction 'on_tiles' is no call", hint="i8 {out}, i8 {x}")
def instruction_on_registers_that_are_no_operands():
    x, out = td.Tensor("x", (4, 4), td.f32), td.Func("out")
    out[i, j] = x[i, j] * 2
    file = td.RegisterFile("tiles", 8, load="call void @load()", store="call void @store()")
    td.instruction("on_tiles", out, llvm="call void @twice(i8 {y})", registers=file)  # here


@wrong(td.TypeMismatch, "must be a func, not Tensor", hint="td.Func")
def instruction_that_means_a_tensor():
    td.instruction("tensor", td.Tensor("x", (4,), td.f32), python=lambda o, x: None)  # here


@wrong(td.ScheduleError, "tensorize('j')", "30 iterations", "4", hint="split")
def instruction_of_another_extent():
    x, out = td.Tensor("x", (4,), td.f32), td.Func("out")
    out[i] = x[i] * 2
    twice4 = td.instruction("twice4", out, python=lambda o, x: None)
    g, _, s = chain()
    s[g].compute_root()
    s[g].tensorize(j, twice4)  # here
    td.compile(s, target="python")(np.zeros((20, 30), np.float32))


@wrong(td.ScheduleError, "not a schedule in JSON", hint="to_json")
def replay_of_broken_text():
    _, _, s = chain()
    s.replay("[{")  # here


@wrong(td.ScheduleError, "not a schedule in JSON", hint="to_json")
def replay_of_no_text():
    _, _, s = chain()
    s.replay(None)  # here


@wrong(td.ScheduleError, "not a schedule in JSON", hint="to_json")
def replay_of_a_number():
    _, _, s = chain()
    s.replay("3")  # here


@wrong(
    td.ScheduleError,
    "not a schedule in JSON",
    "'definition' of",
    "must be a number",
    hint="to_json",
)
def replay_without_a_definition():
    _, _, s = chain()
    s.replay('[{"do": "inline", "func": "g"}]')  # here


@wrong(td.ScheduleError, "no directive 'inlien'", hint="did you mean 'inline'")
def replay_of_an_unknown_directive():
    _, _, s = chain()
    s.replay('[{"do": "inlien", "func": "g", "definition": 0}]')  # here


@wrong(td.ScheduleError, "no func 'h'", hint="g, f")
def replay_for_an_unknown_func():
    _, _, s = chain()
    s.replay('[{"do": "inline", "func": "h", "definition": 0}]')  # here


@wrong(td.ScheduleError, "'g' has 1 definition, there is no definition 1", hint="up to 0")
def replay_for_an_update_that_is_not_there():
    _, _, s = chain()
    s.replay('[{"do": "parallel", "func": "g", "definition": 1, "loop": "i"}]')  # here


@wrong(td.ScheduleError, "split", "argument 'loop' is missing", hint="a string")
def replay_with_an_argument_missing():
    _, _, s = chain()
    s.replay('[{"do": "split", "func": "g", "definition": 0, "factor": 4}]')  # here


@wrong(td.ScheduleError, "split", "no argument 'by'", hint="factor")
def replay_with_an_unknown_argument():
    _, _, s = chain()
    s.replay('[{"do": "split", "func": "g", "definition": 0, "loop": "i", "by": 4}]')  # here


@wrong(td.ScheduleError, "loop must be a string, not 3", hint="a string")
def replay_with_an_argument_of_another_type():
    _, _, s = chain()
    s.replay('[{"do": "parallel", "func": "g", "definition": 0, "loop": 3}]')  # here


@wrong(td.ScheduleError, "compute_at", "no func 'h'", hint="g, f")
def replay_of_a_place_in_an_unknown_func():
    _, _, s = chain()
    place = '"consumer": "h", "consumer_definition": 0, "loop": "i"'
    s.replay('[{"do": "compute_at", "func": "g", "definition": 0, ' + place + "}]")  # here


@wrong(td.ScheduleError, "is not a condition", hint="comparisons")
def replay_of_a_broken_condition():
    _, _, s = chain()
    s.replay('[{"do": "specialize", "func": "f", "definition": 0, "cond": ["eval", "1"]}]')  # here
