"""The agent being trained: its model, its engines, its rollouts and its updates."""
