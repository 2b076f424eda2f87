"""Market traces in memory, synthetic markets and their planted truths."""
