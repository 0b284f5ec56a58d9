"""Which operators share a tile, at which level of memory, and with which tile shapes."""
