"""What the test kit knows of each library: one module per backend, with the words of `Samples`."""
