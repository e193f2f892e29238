"""Runs set against each other: a sweep read, its arms compared as planned, and what the comparison says."""
