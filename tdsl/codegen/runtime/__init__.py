"""From a call in Python to a kernel and back: arguments, arrays, results, the disk cache."""
