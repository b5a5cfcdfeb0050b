"""Proton's engine and the frames around it: all that is said in its terms."""
