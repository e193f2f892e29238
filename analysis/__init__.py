"""Reads what runs leave on disk; never touches a live run."""
