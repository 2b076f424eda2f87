"""Assets: one file a subject; the docstring of an asset describes its table: grain, key, columns, units."""
