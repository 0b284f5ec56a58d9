"""The suite `mpi`: products of matrices on ranks beside ScaLAPACK, and what planning and simulating cost."""
