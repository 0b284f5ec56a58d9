"""All chains, by the rows of the table that they come from."""

from benchmarks.chains import attention, convolution, dense
from benchmarks.chains.chain import case

CHAINS = (*attention.CHAINS, *convolution.CHAINS, *dense.CHAINS)
CASES = tuple(map(case, CHAINS))
