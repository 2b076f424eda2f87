"""Succession: births of heirs and the recorded steps that lead to them."""
