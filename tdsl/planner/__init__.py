"""Placements and distributions that minimise a plan's price: a search over the directives of ranks.

`Schedule.plan` takes a cluster and what the user has decided, and adds `place` and `distribute` directives:

    candidate grids -> strategies of each func -> table of prices -> exact or bounded search -> directives
"""
