"""Observe conversions: a policy allows, warns or forbids, and a record collects."""
