"""Bundle commands: show, compare, check, waive, give and sign."""
