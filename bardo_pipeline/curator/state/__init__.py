"""Curator state: the grimoire during a cycle, its structures, evidence and decisions."""
