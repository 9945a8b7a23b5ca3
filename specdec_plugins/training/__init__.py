"""What starts a training: initial checkpoints, inference twins, presets, the recipe."""
