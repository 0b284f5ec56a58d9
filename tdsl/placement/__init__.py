"""Distribution of tensors: grids of ranks, placements of tensors on grids, and the block that a rank owns."""
