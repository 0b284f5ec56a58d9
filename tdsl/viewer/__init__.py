"""A page of a program: definition, directives, loops with figures, machine code, price; linked by pointing.

contents.py       what a page has: panes of lines, each of which belongs to funcs and loops
loops.py          the loops of a kernel as lines
figures.py        iterations, bytes, operations and time of each loop, by prediction
machine_code.py   assembly or CUDA as lines
panes.py          the panes of a program
page.py           the page as one HTML file
view.py           `View`, which `Schedule.view` returns
"""
