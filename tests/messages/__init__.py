"""What users read when they make a mistake: a table of mistakes with the messages they get."""
