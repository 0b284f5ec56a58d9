"""tdsl: a tensor DSL with separate descriptions of the algorithm, its schedule, and the placement of data."""

from dataclasses import is_dataclass
from types import FunctionType
from typing import TYPE_CHECKING

from tdsl import cuda
from tdsl.compile import Compiled, compile
from tdsl.distribute.abort import install_hook, is_launched
from tdsl.distribute.donated import Donated
from tdsl.emulation import count_memory, emulate
from tdsl.errors import (
    CacheWarning,
    CompileWarning,
    DefinitionError,
    Hazard,
    IndexBoundError,
    InternalError,
    PlanningWarning,
    RequireError,
    ScheduleError,
    ShapeError,
    TargetError,
    TdslError,
    TypeMismatch,
    UnknownAttribute,
    checked_call,
    module_getattr,
)
from tdsl.gradients import grad, stop_gradient, value_and_grad, vjp
from tdsl.graph.graph import Graph
from tdsl.lang import ufunc as _ufunc  # NumPy's functions take values
from tdsl.lang.casts import cast, f4e2m1, saturating_cast
from tdsl.lang.effects import debug_print, fast_math, require
from tdsl.lang.einsum import einsum
from tdsl.lang.functions import (
    absdiff,
    absolute,
    arccos,
    arccosh,
    arcsin,
    arcsinh,
    arctan,
    arctan2,
    arctanh,
    ceil,
    clip,
    copysign,
    cos,
    cosh,
    count_leading_zeros,
    count_trailing_zeros,
    erf,
    exp,
    exp2,
    expm1,
    floor,
    floor_divide,
    fma,
    hypot,
    isfinite,
    isinf,
    isnan,
    lerp,
    log,
    log1p,
    log2,
    log10,
    logical_and,
    logical_not,
    logical_or,
    maximum,
    minimum,
    popcount,
    power,
    random,
    reinterpret,
    remainder,
    round,
    rsqrt,
    sigmoid,
    sin,
    sinh,
    sqrt,
    square,
    tan,
    tanh,
    trunc,
    where,
)
from tdsl.lang.pad import pad
from tdsl.lang.reduction import (
    all,
    any,
    argmax,
    argmin,
    max,
    mean,
    min,
    prod,
    range,
    reduce,
    sum,
)
from tdsl.lang.tensor import Func, Scalar, Tensor
from tdsl.lang.types import ABSTRACT, BY_NAME, DType
from tdsl.lang.value import vars
from tdsl.machine.instructions.instruction import RegisterFile, instruction
from tdsl.op import Operator, op
from tdsl.placement.grid import Grid
from tdsl.planner.cluster import Cluster, Level
from tdsl.target import Target
from tdsl.viewer.schedule import Schedule

MYPY = False  # what mypy takes for true
if MYPY:  # objects, which `tdsl.mypy_plugin` reads in annotations
    from tdsl.lang.types import (
        bf16,
        bool_,
        f8e4m3,
        f8e5m2,
        f16,
        f32,
        f64,
        floating,
        i8,
        i16,
        i32,
        i64,
        integer,
        number,
        u8,
        u16,
        u32,
        u64,
    )
elif TYPE_CHECKING:  # classes, which may annotate parameters
    from tdsl.lang.annotations import (
        bf16,
        bool_,
        f8e4m3,
        f8e5m2,
        f16,
        f32,
        f64,
        floating,
        i8,
        i16,
        i32,
        i64,
        integer,
        number,
        u8,
        u16,
        u32,
        u64,
    )
else:
    globals().update(BY_NAME | ABSTRACT)  # bool_, i8 and the other element types

__version__ = "0.1.0"

__all__ = [
    "CacheWarning",
    "Cluster",
    "CompileWarning",
    "Compiled",
    "DType",
    "DefinitionError",
    "Donated",
    "Func",
    "Graph",
    "Grid",
    "Hazard",
    "IndexBoundError",
    "InternalError",
    "Level",
    "Operator",
    "PlanningWarning",
    "RegisterFile",
    "RequireError",
    "Scalar",
    "Schedule",
    "ScheduleError",
    "ShapeError",
    "Target",
    "TargetError",
    "TdslError",
    "Tensor",
    "TypeMismatch",
    "UnknownAttribute",
    "absdiff",
    "absolute",
    "all",
    "any",
    "arccos",
    "arccosh",
    "arcsin",
    "arcsinh",
    "arctan",
    "arctan2",
    "arctanh",
    "argmax",
    "argmin",
    "bf16",
    "bool_",
    "cast",
    "ceil",
    "clip",
    "compile",
    "copysign",
    "cos",
    "cosh",
    "count_leading_zeros",
    "count_memory",
    "count_trailing_zeros",
    "cuda",
    "debug_print",
    "einsum",
    "emulate",
    "erf",
    "exp",
    "exp2",
    "expm1",
    "f4e2m1",
    "f8e4m3",
    "f8e5m2",
    "f16",
    "f32",
    "f64",
    "fast_math",
    "floating",
    "floor",
    "floor_divide",
    "fma",
    "grad",
    "hypot",
    "i8",
    "i16",
    "i32",
    "i64",
    "instruction",
    "integer",
    "isfinite",
    "isinf",
    "isnan",
    "lerp",
    "log",
    "log1p",
    "log2",
    "log10",
    "logical_and",
    "logical_not",
    "logical_or",
    "max",
    "maximum",
    "mean",
    "min",
    "minimum",
    "mpi",
    "number",
    "op",
    "pad",
    "popcount",
    "power",
    "prod",
    "random",
    "range",
    "recipes",
    "reduce",
    "reinterpret",
    "remainder",
    "require",
    "round",
    "rsqrt",
    "saturating_cast",
    "sigmoid",
    "sin",
    "sinh",
    "sqrt",
    "square",
    "stop_gradient",
    "sum",
    "tan",
    "tanh",
    "testing",
    "trunc",
    "u8",
    "u16",
    "u32",
    "u64",
    "value_and_grad",
    "vars",
    "vjp",
    "where",
]

if is_launched():
    install_hook()  # a rank that fails before its first message ends the others, too

if TYPE_CHECKING:
    from tdsl import jax as jax
    from tdsl import onnx as onnx
    from tdsl import recipes, testing
    from tdsl import torch as torch  # not in `__all__`: `from tdsl import *` works without PyTorch
    from tdsl.distribute import mpi
else:  # a type checker reports unknown names and wrong arguments itself
    for _name in {*__all__}.intersection(globals()):
        _public = globals()[_name]
        if isinstance(_public, FunctionType):
            globals()[_name] = checked_call(_public)
        elif isinstance(_public, type) and is_dataclass(_public):
            _public.__init__ = checked_call(_public.__init__)
    _LAZY_MODULES = {
        "recipes": "tdsl.recipes", "mpi": "tdsl.distribute.mpi", "testing": "tdsl.testing",
        "jax": "tdsl.jax", "torch": "tdsl.torch", "onnx": "tdsl.onnx",
    }  # fmt: skip
    __getattr__ = module_getattr("tdsl", __all__, lazy_modules=_LAZY_MODULES)

    def __dir__() -> list[str]:
        return sorted({"__version__", *__all__, *_LAZY_MODULES})
