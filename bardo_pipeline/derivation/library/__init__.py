"""The library: what an owner's dead golems left, its kits and acquisitions."""
