"""How well listeners hear what people hear."""
