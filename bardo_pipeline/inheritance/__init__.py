"""Inheritance: selects, attenuates and packs the knowledge that a dead golem passes to its heir."""
