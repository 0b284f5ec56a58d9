"""What a schedule costs on a machine: levels of memory as data, bytes moved, time."""
