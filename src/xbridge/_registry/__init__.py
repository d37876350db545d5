"""Find and load backends, complete them with defaults, and cache the calls that use them."""
