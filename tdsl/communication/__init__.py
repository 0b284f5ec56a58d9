"""What the ranks of a distributed program read, own and send each other.

stages.py     the distributed funcs, and the boxes that their iterations access, by the region function
steps.py      the steps of a rank as data
collective.py which messages together are a broadcast, an all-gather, an all-to-all or a reduction
"""
