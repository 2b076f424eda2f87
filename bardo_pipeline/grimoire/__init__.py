"""Grimoire: the entries that a golem knows, and how far it trusts them."""
