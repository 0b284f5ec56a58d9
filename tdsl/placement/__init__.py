"""Where data lives: grids of ranks, placements of tensors on them, and who owns what, as arithmetic."""
