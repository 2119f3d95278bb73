"""Critics, which estimate the return for advantages that need `values`."""
