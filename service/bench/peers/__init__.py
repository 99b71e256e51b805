"""Other servers around the same MLP: one file each, set up as its documentation says."""
