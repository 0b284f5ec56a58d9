"""Lowering: the state of a schedule to a kernel of the loop IR."""
