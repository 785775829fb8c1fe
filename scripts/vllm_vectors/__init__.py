"""Golden vectors: the functions of the real vLLM wheel, driven without a GPU, recorded as input -> output."""
