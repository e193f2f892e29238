"""What `make bench` measures: one part a module, each a function `measure(settings)` that returns figures by key."""
