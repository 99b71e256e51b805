"""Codecs between HTTP bodies and flat tensors: pure functions, no I/O, no event loop."""
