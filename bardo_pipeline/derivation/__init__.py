"""Derivation: gather from the stores, decide by pure passes, apply to the stores."""
