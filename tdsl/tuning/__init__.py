"""Tuning: schedules are measured, and what was measured is recorded."""
