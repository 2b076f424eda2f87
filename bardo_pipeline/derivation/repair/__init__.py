"""Repair: the proof that no valid row names a retracted record or depends on one."""
