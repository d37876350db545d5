"""Calls of functions of one library with the arrays of another."""
