"""Training runs: the only package that knows all the others."""
