"""Benchmarks that ship with the service, and their committed results."""
