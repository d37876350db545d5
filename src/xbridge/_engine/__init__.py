"""Run a conversion: resolve the source, have it planned, execute the steps."""
