"""Benchmarks: `python -m loadtest.bench NAME`. A benchmark prints a table; it is not a test."""
