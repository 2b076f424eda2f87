"""Benchmarks: one command, one table, each figure beside a peer or a limit measured in the same run."""
