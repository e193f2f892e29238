"""Figures and maps: the canvas, its colours and axes, and what is drawn on it."""
