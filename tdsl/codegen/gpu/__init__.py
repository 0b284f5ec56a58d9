"""GPU kernel launches: grid and block sizes, shared memory, tensor maps (TMA), register fragments."""
