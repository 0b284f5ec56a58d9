"""Tile trees of a GPU: one definition cut into blocks, threads and registers, priced by the machine."""
