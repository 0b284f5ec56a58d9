"""Gradients in reverse mode: the adjoints of a program's inputs as ordinary funcs."""
