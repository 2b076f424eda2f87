"""Mortality: mood, vitality, death reserve and silence of golems, and their random streams."""
