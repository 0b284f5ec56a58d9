"""Graphs of operators: a function of arrays that calls operators, planned and run as a whole.

structure   arrays inside of tuples, lists and dicts             structure.py
trace       the function run on symbols: calls of operators      symbol.py, trace.py
functions   NumPy's functions, as small operators                functions.py, which lists them
groups      calls that share a kernel                            groups.py
merge       the programs of a group as one                       merge.py
kernel      what runs in each call, and once                     kernel.py
plan        kernels in order, and what becomes of outputs        plan.py, known.py
memory      where results lie while they are needed              memory.py
steps       all of it as one Python function                     steps.py
tune        groups and schedules by measuring                    tune.py
"""
