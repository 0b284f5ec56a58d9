"""Shared by all intermediate representations: nodes, source locations, text output, debug output."""
