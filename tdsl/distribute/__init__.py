"""Distributed programs over MPI: plans of messages and tasks for a grid of ranks, verified and executed.

rank.py       the steps of one rank, from the stages of `tdsl.communication`
plan.py       plans as data, with their costs
formula.py    the bytes that a rank receives, as an expression of the sizes
check.py      verification: messages match, no deadlock, memory is allocated and values are complete
emit.py       a plan as a standalone module; rank_text.py: the steps of a rank in it
task.py       the computation of a step, as an ordinary program
engine.py     execution of the steps of a rank
simulate.py   execution of all ranks in one process
mpi.py        the communicator, agreement of ranks before a call, deadlines
mpi_execution.py  the steps of a rank as MPI calls; abort.py: the end of all ranks if one fails
checkpoint.py owned blocks in files, loaded on any grid; manifest.py: the list of them
launch.py     `tdsl run`; run_rank.py: a program as one of its ranks
time_model.py a discrete-event model of the time of steps and messages
collective_algorithms.py  the messages of each algorithm of a collective
trace.py      traces of runs and of that model
program.py    the result of `td.compile` for a schedule with distributed funcs
"""
