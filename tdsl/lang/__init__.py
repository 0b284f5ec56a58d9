"""What to compute: the index language, its checks, its region function and its meaning."""
