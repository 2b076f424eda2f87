"""Doors: where people and programs come in."""
