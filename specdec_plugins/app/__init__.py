"""Translating lines of text: what the command line and the Python interface are made of.

Stands on `formats` and `decoding`; nothing below imports it.
"""
