"""`Schedule`: a schedule that can be viewed, with what it compiles to."""

from __future__ import annotations

from copy import copy
from typing import TYPE_CHECKING

from tdsl.lang.sizes import check_sizes
from tdsl.planner import schedule as without_view

if TYPE_CHECKING:  # a program that is not viewed does not load the viewer
    from tdsl.viewer.view import View


class Schedule(without_view.Schedule):
    """How the funcs of a program run: `s[f]` is a stage, and its methods are directives.

    Each directive is checked when it is called and raises ScheduleError if it would change the meaning of
    the program or names an unknown func or loop. `print(s)` shows Python code that rebuilds the schedule;
    `to_json` and `replay` store and restore it. What no directive says is as in the default schedule.
    """

    def view(self, **sizes: int) -> View:
        """A page that shows the definition, directives, loops, machine code and price, linked by pointing.

        `sizes` are those that the schedule leaves open. For ranks there are what they receive and send, and
        the steps of one, in place of loops. What cannot be computed, such as loops of open sizes, is shown as
        its error. `View.open` opens the page in a browser, `View.save` writes it to a file; a notebook
        displays it. ShapeError for an unknown size.
        """
        from tdsl.viewer.panes import contents_of
        from tdsl.viewer.view import View

        p = self.program
        given = check_sizes(p.name, p.sizes, sizes, fixed=self.sizes, equal=p.equal, agreements=p.agreements)
        viewed = copy(self)
        viewed.sizes, viewed._prediction = {**self.sizes, **given}, None
        return View(contents_of(viewed))
