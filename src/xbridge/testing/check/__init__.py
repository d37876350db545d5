"""`check`: find arguments for the functions of a module, and hold each function to the default contract."""
