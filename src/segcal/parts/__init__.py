"""Work on a folder divided between processes and machines, and continued after an interruption."""
