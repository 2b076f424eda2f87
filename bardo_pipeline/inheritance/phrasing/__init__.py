"""Rewords testaments by a language model, and checks its answers."""
