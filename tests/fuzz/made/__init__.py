"""What is sent, by kind: every input is a function of dice alone, so that a number brings it back."""
