"""The C code, driven by tests and by fuzzing while sanitizers watch its use of memory."""
