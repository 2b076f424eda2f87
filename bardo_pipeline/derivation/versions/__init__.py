"""Versions: derivations under another policy or embedder, their comparison, adoption and rebuild."""
