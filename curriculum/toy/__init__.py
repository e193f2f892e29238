"""Toy students with a known learning law, and a benchmark of teachers on them."""
