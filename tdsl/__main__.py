"""Entry point of `python -m tdsl`, the same as the command `tdsl`."""

from tdsl.tools.cli import main

if __name__ == "__main__":
    main()
