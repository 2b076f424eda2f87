"""Causality: variables, lagged moments and the Granger test."""
