"""Curator: pure passes that turn closed cycles into decisions about a grimoire."""
