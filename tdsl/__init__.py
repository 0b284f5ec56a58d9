"""tdsl: write what to compute, how it runs, and where data lives, apart from each other."""

from tdsl.compile import Compiled, compile
from tdsl.errors import (
    CacheWarning,
    DefinitionError,
    IndexBoundError,
    RequireError,
    ScheduleError,
    ShapeError,
    TargetError,
    TdslError,
    TypeMismatch,
)
from tdsl.lang.effects import debug_print, fast_math, require
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
from tdsl.lang.types import (
    DType,
    bf16,
    bool_,
    f16,
    f32,
    f64,
    i8,
    i16,
    i32,
    i64,
    u8,
    u16,
    u32,
    u64,
)
from tdsl.lang.value import cast, saturating_cast, vars
from tdsl.op import Operator, op
from tdsl.schedule.fluent import Schedule
from tdsl.schedule.instruction import instruction
from tdsl.target import Target

__version__ = "0.1.0"
