"""Retrieval: ranks the entries that matter in a golem's situation, and searches entries by text."""
