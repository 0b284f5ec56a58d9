"""Programs for GPUs that no schedule was tuned for: `python -m benchmarks gpu-unknown`.

Each is compiled by the default schedule, at full size for several architectures, and emulated at a small
size. What a GPU would be slow at is counted without one (`resources.py`): one-thread kernels, registers that
are spilled, unused bytes of sectors, bank conflicts, bytes beyond the least.
"""

from benchmarks.cuda.unknown import maps, products, rows, updates
from benchmarks.cuda.unknown.program import ALL, Program

__all__ = ["ALL", "Program", "maps", "products", "rows", "updates"]
