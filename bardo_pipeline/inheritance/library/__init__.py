"""The library of an owner: deposits, entries and kits."""
