"""Events: what is recorded, and never changed."""
