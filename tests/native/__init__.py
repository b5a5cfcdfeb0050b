"""What is written in C, driven by tests and by fuzzing while sanitizers watch what it does to memory."""
