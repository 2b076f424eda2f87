"""Mortality: mood, vitality and death reserve of golems, and their random streams."""
