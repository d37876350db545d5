"""The search for failures of the functions of a module, which `xbridge-array check` runs."""
