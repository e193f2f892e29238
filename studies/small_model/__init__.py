"""Does a small language model learn from users that hear, also to a judge that learned from other people's words and labels?"""
