"""The command `tdsl` and its subcommands: machine checks, a demonstration, measurements, GPU bundles."""
