"""Benchmarks. All timing is done here, never in tests."""
