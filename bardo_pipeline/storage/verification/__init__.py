"""Verification: every check that `bardo verify` runs, and its report."""
