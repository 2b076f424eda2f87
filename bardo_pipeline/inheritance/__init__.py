"""Inheritance: what crosses a death, and at what price."""
