"""What a program is made of, found by its indices: products, rows, strips, chains, parts."""
