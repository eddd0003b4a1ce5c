"""Pure tensor mathematics: tensors in, tensors out, no state, no files, no progress bars."""
