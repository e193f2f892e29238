"""How do throughput and staleness of a rollout pool go from 1 to 1,000 engines?"""
