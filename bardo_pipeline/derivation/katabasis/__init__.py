"""Katabasis: scars, anonymous votes and consensus, derived from the log."""
