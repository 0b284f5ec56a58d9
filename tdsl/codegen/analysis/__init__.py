"""Analyses of the loop IR that passes use; none of them changes a statement."""
