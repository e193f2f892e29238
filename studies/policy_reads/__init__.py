"""Does a policy read hints and nouns, before any reinforcement?"""
