"""Evaluated agents side by side."""
