"""Copies of a store: what marks them, and the copying of one into another, whichever engines keep them."""
