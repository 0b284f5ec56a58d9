"""Facts about loops that passes ask for; nothing here changes a statement."""
