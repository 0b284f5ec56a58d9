"""Rewrites of statements and expressions that several passes use, or that are a part of one."""
