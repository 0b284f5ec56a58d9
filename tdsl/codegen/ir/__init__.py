"""The loop IR: its nodes, a printer, a verifier, and functions that walk and rebuild statements."""
