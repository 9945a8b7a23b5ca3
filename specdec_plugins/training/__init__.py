"""Starts trainings: initial checkpoints, presets, the recipe."""
