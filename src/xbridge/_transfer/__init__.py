"""Convert in other threads: one tree with a handle, or batches ahead of their use."""
