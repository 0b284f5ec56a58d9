"""Tuning measured: what it gains over default schedules, and what is lost when it is killed."""
