"""The segmentation networks of the paper's experiments."""
