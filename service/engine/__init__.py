"""Engines: from resident weights and a batch to its answers."""
