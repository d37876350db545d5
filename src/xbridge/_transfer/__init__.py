"""Convert in the background: one tree with a handle, or the batches of a loop ahead of their use."""
