"""Schedules: directives on loops and storage, their legality, their data form, the default schedule."""
