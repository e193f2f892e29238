"""Engines: what turns token ids into sampled token ids, and how they get new weights."""
