"""HTTP in processes of its own: front ends, the engine's process, and the way between them."""
