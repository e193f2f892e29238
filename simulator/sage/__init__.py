"""SAGE: its profiles and recordings, its rule of emotion, and a user who lives by it."""
