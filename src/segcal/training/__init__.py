"""The one training loop, its batches and its checkpoints."""
