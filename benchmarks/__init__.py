"""Measurements: what is timed lives here, never in tests."""
