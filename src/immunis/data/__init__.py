"""Data as users bring it: tasks, splits, batches, sources."""
