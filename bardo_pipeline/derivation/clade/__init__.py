"""Exchange of knowledge between the golems of one owner, in one home or several, through a relay."""
