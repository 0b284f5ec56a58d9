"""From the state of a schedule to loops."""
