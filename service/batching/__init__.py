"""From an admitted request to its answer: admission, arena, policy, batcher, engine thread."""
