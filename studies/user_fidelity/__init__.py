"""Does the embedded user feel what recorded users of SAGE felt? The fit of the preset SAGE, and the figures of its fidelity."""
