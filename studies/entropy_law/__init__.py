"""Does reward cost entropy by the law R = -a exp(H) + b?"""
