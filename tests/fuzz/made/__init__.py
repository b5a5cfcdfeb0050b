"""The inputs by kind. Every input is a function of its random numbers alone, so that its number reproduces it."""
