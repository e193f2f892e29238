"""Does a small language model learn from users that hear, as a judge sees it who shares nothing with their listener?"""
