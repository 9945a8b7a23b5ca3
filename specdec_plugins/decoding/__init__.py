"""The decoding core: torch and the standard library only."""
