"""Patterns that recipes schedule, recognised by their indices: products, rows, strips, chains, parts."""
