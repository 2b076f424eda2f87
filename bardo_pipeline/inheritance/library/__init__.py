"""An owner's library of entries from its golems: deposits, entries and kits."""
