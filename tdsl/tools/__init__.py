"""The command `tdsl`, and what it runs: a check of the machine, a demonstration, measurements, bundles."""
