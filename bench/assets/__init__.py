"""The embedded model and task of the `tiny` suite, and the scripts that made them."""
