"""Observe conversions: a policy forbids kinds of conversions or warns of them, and a record counts them."""
