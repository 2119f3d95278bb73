"""A server of a policy over HTTP: continuous batching, and the protocols of SGLang and vLLM."""
