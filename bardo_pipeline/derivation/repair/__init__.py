"""Repair: strikes, reorgs and withdrawals, and the proof that nothing depends on a retracted record."""
