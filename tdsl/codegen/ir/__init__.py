"""The loop IR: its nodes, their text, what every kernel satisfies, and how statements are walked."""
