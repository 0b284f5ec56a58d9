"""Schedules written as ordinary functions on the public directives.

A recipe takes a stage and gives its loops the shape that is known to be fast for what it computes. The
default schedule uses the same functions.
"""

from typing import TYPE_CHECKING

from tdsl.autoschedule.block_tree.named import (
    block_conv,
    block_sums,
    block_tiles,
    block_transpose,
    block_tree,
)
from tdsl.autoschedule.block_tree.rows import block_rows
from tdsl.autoschedule.recipes.bands import bands
from tdsl.autoschedule.recipes.block_scales import block_scaled_matmul
from tdsl.autoschedule.recipes.block_scan import block_scan
from tdsl.autoschedule.recipes.block_segments import block_segments
from tdsl.autoschedule.recipes.block_updates import block_updates
from tdsl.autoschedule.recipes.conv import conv
from tdsl.autoschedule.recipes.cosma import carma, cosma
from tdsl.autoschedule.recipes.elements import elements
from tdsl.autoschedule.recipes.inner_sums import inner_sums
from tdsl.autoschedule.recipes.layouts import redistribute
from tdsl.autoschedule.recipes.matmul import matmul
from tdsl.autoschedule.recipes.online_bands import online_bands
from tdsl.autoschedule.recipes.online_blocks import online_blocks
from tdsl.autoschedule.recipes.online_tensor_cores import online_tensor_cores
from tdsl.autoschedule.recipes.pairs import pairs
from tdsl.autoschedule.recipes.pipeline_orders import (
    eager_one_f_one_b,
    gpipe,
    interleaved_one_f_one_b,
    one_f_one_b,
)
from tdsl.autoschedule.recipes.products import (
    cannon,
    johnson,
    pumma,
    solomonik_2_5d,
    summa,
)
from tdsl.autoschedule.recipes.reduced_tiles import reduced_fragments, reduced_tiles
from tdsl.autoschedule.recipes.rows import rows
from tdsl.autoschedule.recipes.stencil import strips
from tdsl.autoschedule.recipes.tensor_cores import tensor_core_matmul
from tdsl.errors import module_getattr

__all__ = [
    "bands",
    "block_conv",
    "block_rows",
    "block_scaled_matmul",
    "block_scan",
    "block_segments",
    "block_sums",
    "block_tiles",
    "block_transpose",
    "block_tree",
    "block_updates",
    "cannon",
    "carma",
    "conv",
    "cosma",
    "eager_one_f_one_b",
    "elements",
    "gpipe",
    "inner_sums",
    "interleaved_one_f_one_b",
    "johnson",
    "matmul",
    "one_f_one_b",
    "online_bands",
    "online_blocks",
    "online_tensor_cores",
    "pairs",
    "pumma",
    "redistribute",
    "reduced_fragments",
    "reduced_tiles",
    "rows",
    "solomonik_2_5d",
    "strips",
    "summa",
    "tensor_core_matmul",
]

if not TYPE_CHECKING:  # a type checker sees which recipes there are
    __getattr__ = module_getattr("td.recipes", __all__)


def __dir__() -> list[str]:
    return [*__all__]
