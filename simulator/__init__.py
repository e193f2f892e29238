"""Simulated users whose feelings are the reward."""
