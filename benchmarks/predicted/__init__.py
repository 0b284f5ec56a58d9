"""Bytes that caches move as schedules predict them, beside bytes that are counted line by line."""
