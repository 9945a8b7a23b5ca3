"""Translation of lines of text, for the command line and the Python interface.

Builds on `formats` and `decoding`; no lower layer imports it.
"""
