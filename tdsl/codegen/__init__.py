"""From a scheduled program to loops, and from loops to code."""
