"""What every intermediate representation shares: nodes, places in the user's source, text, debug output."""
