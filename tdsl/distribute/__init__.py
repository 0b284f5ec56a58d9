"""Who does what on a grid of ranks: plans of messages and tasks, their proof, and running them.

stages.py     the distributed funcs, and the boxes that their iterations touch, by the region function
rank.py       the steps of one rank
collective.py which messages are together a broadcast, a gathering or a reduction
plan.py       plans as data, with what they cost
formula.py    what a rank receives, as an expression of the sizes
check.py      the proof that messages match, nothing waits for ever, and memory suffices
emit.py       a plan as a module of its own; rank_text.py: the steps of a rank in it
task.py       what a rank computes, as an ordinary program
engine.py     running the steps of a rank
simulate.py   all ranks in one process
mpi.py        what all ranks of a run agree on; carry.py: their messages as calls of MPI
clock.py      when steps would run: a model of links
trace.py      traces of runs and of that model
program.py    what `td.compile` gives for a schedule with distributed funcs
"""
