"""Caches for queries: ticks by category, and episodes by vector."""
