"""The benchmark of any agent: who speaks, with whom, what is kept of it and what is read off it."""
