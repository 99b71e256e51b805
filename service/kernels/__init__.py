"""What kernels compute, and the references that they are judged by."""
