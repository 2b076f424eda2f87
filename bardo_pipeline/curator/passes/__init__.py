"""Curator passes: one file a pass, in the order of `curate.PASSES`."""
