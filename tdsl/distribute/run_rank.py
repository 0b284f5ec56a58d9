"""Runs a program as one rank of `tdsl run`: its path, or `-m` and its module, and its arguments follow.

An uncaught exception and an exit code that is not 0 end all ranks.
"""

from __future__ import annotations

import os
import runpy
import sys

from tdsl.distribute.abort import abort_ranks, install_hook


def main() -> None:
    """Run the program of the command line."""
    install_hook()
    del sys.argv[0]
    try:
        if sys.argv[0] == "-m":
            del sys.argv[0]
            runpy.run_module(sys.argv[0], run_name="__main__", alter_sys=True)
        else:
            sys.path[0] = os.path.dirname(os.path.realpath(sys.argv[0]))
            runpy.run_path(sys.argv[0], run_name="__main__")
    except SystemExit as end:
        if end.code not in (None, 0):
            if not isinstance(end.code, int):
                sys.stderr.write(f"{end.code}\n")
            abort_ranks(end.code if isinstance(end.code, int) else 1)
        raise


if __name__ == "__main__":
    main()
