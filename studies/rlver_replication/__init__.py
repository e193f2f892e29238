"""Do the findings of RLVER (arXiv 2507.03112) hold here?"""
