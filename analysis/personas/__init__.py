"""Whether simulated users stay who they are: what is measured, on which dialogues, by which judge."""
