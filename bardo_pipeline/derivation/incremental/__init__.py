"""Incremental derivation: checkpoints, caches by golem, and the reading of closed cycles."""
