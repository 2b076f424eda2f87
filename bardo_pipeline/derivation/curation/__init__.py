"""Curation: closed cycles to decisions, the grimoire, its playbook and its caches."""
