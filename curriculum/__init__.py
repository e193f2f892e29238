"""What to practise next: teachers that set difficulty, and indicators that warn of collapse."""
