"""Curator passes, in the order of `curate.PASSES`."""
