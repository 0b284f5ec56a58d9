"""`python -m tdsl` is the command `tdsl`."""

from tdsl.tools.cli import main

if __name__ == "__main__":
    main()
