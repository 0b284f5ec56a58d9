"""Tensorised instructions: how a user declares an instruction on tiles, and the tables of built-in ones."""
