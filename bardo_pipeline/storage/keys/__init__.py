"""Keys: the signing keys and tokens of owners, and the sealing keys of golems."""
