"""Katabasis: what is shared beyond one golem, and how belief is counted."""
