"""The bytes that caches move for schedules: as predicted, and as counted line by line."""
