"""All cases by name."""

from types import MappingProxyType

from benchmarks import unknown
from benchmarks.case import Case
from benchmarks.cases import (
    bilateral_grid,
    blur3x3,
    chains,
    conv,
    conv_relu,
    demo,
    depthwise,
    gemm,
    gradients,
    harris,
    jacobi,
    local_laplacian,
    reductions,
    rows,
    sgemm,
    stream,
    tensor,
    unsharp,
)
from benchmarks.chains import table

ALL = MappingProxyType(
    {
        case.name: case
        for case in (
            *demo.CASES,
            blur3x3.CASE,
            unsharp.CASE,
            harris.CASE,
            bilateral_grid.CASE,
            local_laplacian.CASE,
            conv_relu.CASE,
            *conv.CASES,
            *depthwise.CASES,
            sgemm.CASE,
            *gemm.CASES,
            *rows.CASES,
            *reductions.CASES,
            *gradients.CASES,
            *stream.CASES,
            *chains.CASES,
            *tensor.CASES,
            jacobi.CASE,
            *table.CASES,
            *unknown.CASES,
        )
    }
)


def find(name: str) -> Case:
    """The case with this name; KeyError lists all names."""
    if name not in ALL:
        raise KeyError(f"no case {name!r}; there are {', '.join(ALL)}")
    return ALL[name]
