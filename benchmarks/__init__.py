"""Benchmarks: each figure is compared with a peer or a limit measured in the same run."""
