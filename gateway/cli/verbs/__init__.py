"""The verbs of ``rewind`` that ask a gateway, or work on its store: one file a noun."""
