"""Market data: recorded traces and lending rates, read from CSV files."""
