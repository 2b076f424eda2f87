"""Keys: the signing keys of owners and the sealing keys of golems."""
