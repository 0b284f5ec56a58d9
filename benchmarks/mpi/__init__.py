"""The suite `mpi`: products of matrices on ranks against ScaLAPACK, and the cost of plans and simulation."""
