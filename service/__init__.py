"""tilemlp: SwiGLU MLPs of LLMs, resident on a GPU and served over HTTP."""

__version__ = "0.1.0"
