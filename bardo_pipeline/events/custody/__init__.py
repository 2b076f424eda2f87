"""Custody: the hash chain, its keys and the sealing of private parts."""
