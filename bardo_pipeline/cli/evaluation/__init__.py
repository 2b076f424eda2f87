"""Evaluation commands: `bardo eval`."""
