"""Plans that are found, compared with those of other methods on the same prices."""
