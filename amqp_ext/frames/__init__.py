"""Checks of a peer's frames before the engine gets them: what it wrongly accepts, or answers with too wide a close."""
