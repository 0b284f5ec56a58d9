"""Graphs of operators: a function of arrays that calls operators, traced, compiled and run as a whole.

structure   arrays nested in tuples, lists and dicts (pytrees)   structure.py
trace       records operator calls by running on symbols         symbol.py, trace.py
functions   NumPy's functions, each as a small operator          functions.py
groups      operator fusion: the calls that share a kernel       groups.py
merge       the programs of a group merged into one program      merge.py
kernel      constant folding, and the compiled program           kernels.py, ../folded_kernel.py
plan        kernels in execution order, and the output arrays    plan.py, planned_function.py
memory      buffer offsets by liveness of the results            memory.py
steps       Python source that calls all kernels                 steps.py
tune        measured fusion and measured schedules               tune.py
"""
