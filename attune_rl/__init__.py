"""Attune's users and teachers inside other people's trainers; one module a host, all over `Session`."""

from attune_rl.session import Episode, Result, Session, Ticket

__all__ = ["Episode", "Result", "Session", "Ticket"]
