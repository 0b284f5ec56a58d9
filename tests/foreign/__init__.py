"""Test suites that others wrote, run against tdsl."""
