"""The checks of `bardo verify` and their report."""
