"""Changes of statements and expressions that passes are made of."""
