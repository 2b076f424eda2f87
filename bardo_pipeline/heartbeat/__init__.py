"""Heartbeat: the reference fleet, stepped as columns over golems."""
