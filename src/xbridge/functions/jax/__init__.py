"""Run functions of JAX for others, and calls of other functions in the transforms of JAX."""
