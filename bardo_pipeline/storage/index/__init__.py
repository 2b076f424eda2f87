"""Indexes: ticks by golem, and episodes by vector."""
