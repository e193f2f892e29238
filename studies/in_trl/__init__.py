"""The teacher inside TRL's trainer, beside Attune's own."""
