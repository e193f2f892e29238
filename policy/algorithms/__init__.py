"""Algorithms: advantages, the policy loss and the critic of GRPO, RLOO, REINFORCE++ and PPO."""
