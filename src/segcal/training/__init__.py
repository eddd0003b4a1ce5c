"""Training: settings, batches, the one loop, validation, progress and checkpoints."""
