"""The engine runs conversions: it finds the backend of an input, has `_plan` choose steps, and runs them."""
