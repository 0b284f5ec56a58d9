"""Programs that no recipe was written for: contractions of tensors, and kernels of NPBench.

The default schedule is not tuned on them. `unseen.py` has cases of both kinds that were not looked at at all
while it was tuned.
"""

from benchmarks.unknown import contractions, unseen
from benchmarks.unknown.npbench import data, networks, physics, products, stencils, triangular, weather

DOMAINS = (products, triangular, stencils, weather, networks, data, physics)
CASES = (
    *contractions.CASES,
    *(case for domain in DOMAINS for case in domain.CASES),
    *unseen.CASES,
)
