"""Backends: their index, how they are loaded and completed, and the tables of the fast path."""
