"""Texts of a runtime in its own words."""
