"""Jobs: what runs together, and when."""
