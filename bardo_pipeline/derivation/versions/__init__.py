"""Versions: derivations under another policy, their comparison, adoption and rebuild."""
