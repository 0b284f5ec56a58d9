"""How loops run: directives, their legality, and schedules as data."""
