"""Limits of a tick: the daily budget, permits, and the cache of decisions. Pure."""
