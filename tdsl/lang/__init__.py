"""The index language (funcs, reductions, expressions), its checks, bounds inference and interpreter."""
