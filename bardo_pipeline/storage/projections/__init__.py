"""Projections: the derived tables of one derivation, and their folders."""
