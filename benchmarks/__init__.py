"""Side-by-side measurements against other tools; not tests."""
