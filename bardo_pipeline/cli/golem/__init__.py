"""Golem commands: deaths, graves, succession and testament phrasing."""
