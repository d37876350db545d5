"""Run functions of torch for others, and calls of other functions in the graphs and programs of torch."""
