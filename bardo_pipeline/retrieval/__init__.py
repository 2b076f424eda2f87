"""Retrieval: from a situation to the few entries that matter in it."""
