"""Research questions, one folder each: code, settings, tests and results. They import the core; the core imports none of them."""
