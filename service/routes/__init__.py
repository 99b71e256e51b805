"""HTTP: what is listened for, what is answered, and nothing about how it is computed."""
