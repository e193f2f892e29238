"""Rollouts: dialogues between the policy and simulated users, in a pool of Ray workers."""
