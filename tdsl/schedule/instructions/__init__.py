"""Instructions on tiles: how they are declared, and those of processors that are known."""
