"""Curation of closed cycles: decisions, grimoire, playbooks; owners' overrides and models' proposals."""
